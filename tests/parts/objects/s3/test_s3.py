"""Artifacts in S3: the contract, parts, addresses, what a killed writer left, and a whole platform on them."""

import hashlib
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner

from disturbed_server import Server, artifacts_in, uploads
from modelyard import Example, Message, Role, open_platform
from modelyard.cli import main
from modelyard.errors import Conflict
from modelyard.parts.objects import direct
from modelyard.parts.objects.store import ObjectArtifacts
from modelyard.testing import ArtifactStoreContract

MIB = 2**20
ROOT = Path(__file__).parents[4]


class TestS3(ArtifactStoreContract):
    @pytest.fixture
    def artifacts(self, server: Server, bucket: str, tmp_path: Path) -> ObjectArtifacts:
        return artifacts_in(server, bucket, tmp_path)


@pytest.fixture
def artifacts(server: Server, bucket: str, tmp_path: Path) -> ObjectArtifacts:
    return artifacts_in(server, bucket, tmp_path)


def test_a_large_artifact_goes_in_parts_and_comes_back(artifacts: ObjectArtifacts, server: Server, bucket: str) -> None:
    data = os.urandom(MIB) * 12
    stored = artifacts.put(data[start : start + MIB] for start in range(0, len(data), MIB))
    assert server.asked.count("POST") == 2  # begun and completed
    assert (stored.size, stored.digest) == (len(data), hashlib.sha256(data).hexdigest())
    with artifacts.open(stored.name, stored.digest) as file:
        assert file.read() == data
    assert uploads(server, bucket) == []


def test_no_part_remains_of_a_source_that_fails(artifacts: ObjectArtifacts, server: Server, bucket: str) -> None:
    def source() -> Iterator[bytes]:
        for _ in range(12):
            yield bytes(MIB)
        assert len(uploads(server, bucket)) == 1
        raise EOFError

    with pytest.raises(EOFError):
        artifacts.put(source())
    assert uploads(server, bucket) == []
    assert list(artifacts.names()) == []


def put(address: str, data: bytes) -> None:
    urlopen(Request(address, data, {"Content-Type": "application/octet-stream"}, method="PUT"), timeout=60).close()


def test_parts_come_to_their_addresses_in_any_order(
    artifacts: ObjectArtifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "_PART", 5 * MIB)
    data = os.urandom(MIB) * 12
    upload = artifacts.begin(len(data))
    assert upload is not None
    assert (upload.part_size, len(upload.addresses)) == (5 * MIB, 3)
    parts = [data[start : start + upload.part_size] for start in range(0, len(data), upload.part_size)]
    for number in (2, 0):
        put(upload.addresses[number], parts[number])
    with pytest.raises(Conflict, match=f"{len(parts[2]) + len(parts[0])} of the {len(data)} bytes"):
        artifacts.finish(upload, hashlib.sha256(data).hexdigest())
    put(upload.addresses[1], parts[1])
    stored = artifacts.finish(upload, hashlib.sha256(data).hexdigest())
    with artifacts.open(stored.name, stored.digest) as file:
        assert file.read() == data


def test_the_page_runs(server: Server, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lane has no installed modelyard, so its command is made here."""
    server.client().create_bucket(Bucket="yard")
    command = tmp_path / "bin" / "modelyard"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m modelyard.cli "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    docs = runpy.run_path(str(ROOT / "tests" / "docs" / "test_docs.py"))
    page = ROOT / "docs" / "how-to" / "keep-artifacts-in-an-object-store.md"
    docs["run_page"](page, tmp_path, monkeypatch)


KILLED = """
import os, signal, sys
from modelyard.artifacts.address import open_artifacts
def chunks():
    for _ in range(40):
        yield bytes(2**20)
    os.kill(os.getpid(), signal.SIGKILL)
open_artifacts(sys.argv[1], os.urandom).put(chunks())
"""


def test_the_parts_of_a_killed_writer_are_swept_when_they_are_old(server: Server, bucket: str, address: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, address], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(uploads(server, bucket)) == 1
    with open_platform(artifacts=address) as platform:
        assert platform.remove_orphans(grace=0).unfinished == 0
        assert len(uploads(server, bucket)) == 1
        assert platform._runtime.artifacts.remove_unfinished(-60) == 1
    assert uploads(server, bucket) == []


def test_a_platform_keeps_all_its_files_in_a_bucket(server: Server, bucket: str, address: str, tmp_path: Path) -> None:
    rows = [Example((Message(Role.USER, "ping"), Message(Role.ASSISTANT, "pong")))] * 4
    with open_platform(tmp_path / "yard.db", artifacts=address) as platform:
        model = platform.models.create("m", project="p", base_model="tabular-mini")
        assert platform.training.sft(model.id, rows).wait().status == "succeeded"
        platform.chat.complete(model="local/p/m", messages="ping")
        assert platform.health.system_check().artifacts.success
        assert platform.remove_orphans(grace=0).missing == ()
        platform.backup(tmp_path / "copy.db")
        kept = {one["Key"] for one in server.client().list_objects_v2(Bucket=bucket)["Contents"]}
    assert {f"yard/{path.name}" for path in (tmp_path / "copy.db-artifacts").iterdir()} == kept
    assert not (tmp_path / "yard.db-artifacts").exists()
    with open_platform(tmp_path / "copy.db") as copy:
        copy.chat.complete(model="local/p/m", messages="ping")


def test_a_backup_of_a_bucket_is_restored_to_another_and_its_files_are_compared(
    server: Server, bucket: str, address: str, tmp_path: Path
) -> None:
    rows = [Example((Message(Role.USER, "ping"), Message(Role.ASSISTANT, "pong")))] * 4
    store, copy, back, place = tmp_path / "yard.db", tmp_path / "copy.db", tmp_path / "back.db", f"{address}-restored"
    with open_platform(store, artifacts=address) as platform:
        model = platform.models.create("m", project="p", base_model="tabular-mini")
        platform.training.sft(model.id, rows).wait()

    def call(*words: object, status: int = 0) -> str:
        done = CliRunner().invoke(main, [str(word) for word in words])
        assert done.exit_code == status, (done.output, done.exception)
        return done.output

    call("backup", "--store", store, "--artifacts", address, copy)
    assert "1 files, each compared with the backup" in call("restore", copy, back, "--artifacts", place)
    assert "0 records lack" in call("doctor", "--store", back, "--artifacts", place, "--files")
    (name,) = (path.name for path in (tmp_path / "copy.db-artifacts").iterdir())
    client = server.client()
    client.put_object(Bucket=bucket, Key=f"yard-restored/{name}", Body=b"other bytes")
    with open_platform(back, artifacts=place) as platform:
        platform._runtime.artifacts._cache.drop(name)
        assert ["altered" in fault.problem for fault in platform.health.check_files()] == [True]
        client.delete_object(Bucket=bucket, Key=f"yard-restored/{name}")
        assert ["is gone" in fault.problem for fault in platform.health.check_files()] == [True]
