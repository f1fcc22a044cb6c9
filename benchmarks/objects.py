"""Artifacts in an object store beside a folder and beside bare obstore, as JSON: python benchmarks/objects.py.

The S3-compatible server is moto's, in a process of its own: it is Python, and the limit of what crosses it, so only
ratios within one run say something. It is skipped where moto is not installed: the Python of the lane `objects` has it.
In memory obstore has no server, so what is left is the cost of this library. The sweep joins two million names with the
records of half of them, and removes the others; names and records are simulated.
"""

import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import attrs
import obstore
from obstore.store import MemoryStore, S3Store

from modelyard import open_platform
from modelyard.artifacts.folder import FolderArtifacts
from modelyard.artifacts.memory import MemoryArtifacts
from modelyard.domain.training import Dataset
from modelyard.parts.objects.direct import _s3_client
from modelyard.parts.objects.store import ObjectArtifacts
from modelyard.platform.operations import orphans
from modelyard.protocols import ArtifactStore

MIB = 2**20
SIZE = 64
SMALL = 50
NAMES = 1_000_000


def cpu_and_wall(action: Callable[[], object], times: int = 3) -> tuple[float, float]:
    """Seconds of this process's processor and of the wall, the best of several."""
    found = []
    for _ in range(times):
        cpu, wall = time.process_time(), time.perf_counter()
        action()
        found.append((time.process_time() - cpu, time.perf_counter() - wall))
    return min(cpu for cpu, _ in found), min(wall for _, wall in found)


def chunks() -> Iterator[bytes]:
    """`SIZE` MiB, one at a time."""
    data = bytes(range(256)) * 4096
    return (data for _ in range(SIZE))


def rates(put: Callable[[], Any], read: Callable[[Any], object]) -> dict[str, int]:
    """MB a second by the wall, and by the processor of this process."""
    kept: list[Any] = []
    put_cpu, put_wall = cpu_and_wall(lambda: kept.append(put()))
    get_cpu, get_wall = cpu_and_wall(lambda: read(kept.pop()))
    seconds = {"put": put_wall, "put, processor": put_cpu, "get": get_wall, "get, processor": get_cpu}
    return {f"{name} MB/s": round(SIZE * MIB / 1e6 / spent) for name, spent in seconds.items()}


def read_all(artifacts: ArtifactStore, name: str) -> None:
    with artifacts.open(name) as file:
        while file.read(MIB):
            pass


def of_artifacts(artifacts: ArtifactStore) -> dict[str, float]:
    names: list[str] = []
    _, put = cpu_and_wall(lambda: names.extend(artifacts.put([b"x" * 1000]).name for _ in range(SMALL)))
    _, first = cpu_and_wall(lambda: [read_all(artifacts, names.pop()) for _ in range(SMALL)])
    small = {"small put ms": round(put / SMALL * 1000, 2), "small get ms": round(first / SMALL * 1000, 2)}
    return {**rates(lambda: artifacts.put(chunks()).name, lambda name: read_all(artifacts, name)), **small}


def of_obstore(store: Any) -> dict[str, int]:
    """Bare obstore, with the same parts, and bytes that are only counted."""

    def put() -> str:
        name = os.urandom(16).hex()
        with obstore.open_writer(store, name, buffer_size=16 * MIB, max_concurrency=4) as writer:
            for chunk in chunks():
                writer.write(chunk)
        return name

    return rates(put, lambda name: sum(len(chunk) for chunk in obstore.get(store, name).stream(min_chunk_size=MIB)))


def side_by_side(store: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        objects = ObjectArtifacts(store, f"{folder}/cache", whole=2**40)
        return {
            "folder": of_artifacts(FolderArtifacts(f"{folder}/files")),
            "bare obstore": of_obstore(store),
            "objects": of_artifacts(objects),
        }


def with_s3() -> dict[str, Any] | None:
    if find_spec("moto") is None:
        return None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        named = {"endpoint": f"http://127.0.0.1:{port}", "region": "us-east-1", "client_options": {"allow_http": True}}
        store = S3Store("bench", access_key_id="bench", secret_access_key="bench", **named)
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.1)
        _s3_client(store).create_bucket(Bucket="bench")
        return side_by_side(store)
    finally:
        server.terminate()
        server.wait()


def alone(what: str) -> Any:
    """What a process of its own measures, whose memory nothing else has grown."""
    done = subprocess.run([sys.executable, __file__, what], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def gigabyte(what: str) -> int:
    """MiB by which this process grows while it puts 1 GB in a folder that obstore serves, or opens it."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "objects").mkdir()
        artifacts = ObjectArtifacts(obstore.store.LocalStore(Path(folder, "objects")), f"{folder}/cache")
        read_all(artifacts, artifacts.put([b"x"]).name)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        data = bytes(range(256)) * 4096
        stored = artifacts.put(data for _ in range(1000))
        if what == "get":
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            artifacts.open(stored.name, stored.digest).close()
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024


@attrs.frozen
class Simulated:
    """Artifacts that are names only; what is to be written goes into a folder."""

    inner: FolderArtifacts
    removed: list[int] = attrs.field(factory=lambda: [0])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def names(self) -> Iterator[str]:
        return (f"{number:032x}" for number in range(2 * NAMES))

    def remove(self, name: str) -> None:
        self.removed[0] += 1


@attrs.frozen
class NoWait:
    inner: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def sleep(self, seconds: float) -> None:
        pass


def sweep() -> dict[str, float]:
    def datasets(_: object) -> Iterator[Dataset]:
        now = platform.clock.now()
        return (Dataset(f"{n}", "e", "p", "d", n, f"{n:032x}", 1, 1, "0" * 64, now) for n in range(NAMES))

    with tempfile.TemporaryDirectory() as folder, open_platform(artifacts=MemoryArtifacts()) as platform:
        artifacts = Simulated(FolderArtifacts(folder))
        runtime = attrs.evolve(platform._runtime, artifacts=artifacts, clock=NoWait(platform.clock))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with patch.object(orphans, "_naming", datasets):
            began = time.process_time()
            report = orphans.collect_orphans(runtime)
            spent = time.process_time() - began
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert (report.removed, report.missing) == (NAMES, ())
    return {"names": 2 * NAMES, "records": NAMES, "processor s": round(spent, 1), "grown MiB": grown // 1024}


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(sweep() if sys.argv[1] == "sweep" else gigabyte(sys.argv[1])))
        return
    found = {
        "in memory": side_by_side(MemoryStore()),
        "S3 of moto": with_s3(),
        "MiB to put 1 GB": alone("put"),
        "MiB to get 1 GB": alone("get"),
        "sweep": alone("sweep"),
    }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
