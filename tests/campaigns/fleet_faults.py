"""Two servers and two workers under faults of every kind: nothing that was answered is lost, and no job stands still.

    python -m tests.campaigns.fleet_faults                               100 faults, on PostgreSQL
    python -m tests.campaigns.fleet_faults --faults 1000 --seed 7        more, others
    python -m tests.campaigns.fleet_faults --store sqlite                over one file
    python -m tests.campaigns.fleet_faults --sabotage "skip a commit"    must exit with 1

Faults hit two at a time, each another target: clients that hang up, the model server, connections of PostgreSQL and
its server, servers and workers that are killed, stopped or frozen, and the object store. Prints a report as JSON, whose
`broken` must be empty. Workers that are broken on purpose are not hit: others would do their jobs.
"""

import argparse
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import attrs
import psycopg

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))
sys.path.insert(0, str(Path(__file__).parent))

from fleet_callers import Caller, Seen, prepared
from fleet_hearts import Hearts
from fleet_yard import LEASE, OF_WORKERS, SABOTAGES, platform

from free_ports import free_ports
from gates import Gate
from modelyard import Platform
from modelyard.platform.operations.files import file_faults
from object_server import ObjectServer, object_server
from postgres_server import PostgresServer, server_folder

CALLERS, TORMENTORS = 6, 2
CALLERS_OF_SHORT = 3
FROZEN = 4 * LEASE
"""Two minutes of the lease of half a minute that workers have by default."""
LONG_OUTAGE, LONG_ONES = 30.0, 0.1
SHORTEST = 0.3
"""Seconds of each outage of a short campaign, which shows that the campaign works."""
LONGEST_RETURN = 900.0
"""Seconds, for a machine that has much else to do."""
STILL = 120
"""Heartbeats of all workers together in which a job comes on, unless it stands still."""
TAKEN = re.compile(r"(?m)^(\S+ \S+) .*job \S+ was taken over from worker (\S+), which is dead or silent")
NAMED = re.compile(r"worker (\S+) waits for jobs")


@attrs.define(eq=False)
class Node:
    """A server or a worker, started again whenever it has ended. `disturbed` are the logs of processes that were
    killed, frozen, or ended by themselves, with the moment: others may take jobs from these since, and from no other.
    """

    name: str
    command: list[str]
    folder: Path
    process: Any = None
    number: int = 0
    disturbed: dict[Path, float] = attrs.field(factory=dict)
    ended_alone: list[str] = attrs.field(factory=list)
    lock: Any = attrs.field(factory=threading.Lock)

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}-{self.number}.log"

    def start(self) -> None:
        self.number += 1
        with self.log.open("wb") as log:
            words = [sys.executable, "-m", "modelyard.cli", *self.command, "--factory", "fleet_yard:platform"]
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def disturb(self) -> None:
        self.disturbed.setdefault(self.log, time.time())

    def end(self, how: int) -> None:
        with self.lock:
            self.disturb()
            self.process.send_signal(how)
            try:
                self.process.wait(LONGEST_RETURN)
            except subprocess.TimeoutExpired:
                self.ended_alone.append(f"{self.log.name} did not end after a signal")
                self.process.kill()
                self.process.wait()
            self.start()

    def freeze(self, seconds: float) -> None:
        with self.lock:
            self.disturb()
            self.process.send_signal(signal.SIGSTOP)
            time.sleep(seconds)
            self.process.send_signal(signal.SIGCONT)

    def look(self) -> None:
        """Start it again if it has ended by itself, as a supervisor does."""
        if self.lock.acquire(blocking=False):
            try:
                if self.process.poll() is not None:
                    self.disturb()
                    last = self.log.read_text().strip().splitlines()[-1:]
                    self.ended_alone.append(f"{self.log.name} ended with {self.process.returncode}: {last}")
                    self.start()
            finally:
                self.lock.release()


class ModelServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Nothing: who asks is cut off."""


class Model(BaseHTTPRequestHandler):
    """A model server whose answers take a while."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        usage = {"prompt_tokens": 1, "completion_tokens": 5, "total_tokens": 6}
        one = {"id": "x", "created": 1, "model": "served", "usage": usage}
        if not asked.get("stream"):
            time.sleep(0.02)
            choice = {"index": 0, "message": {"role": "assistant", "content": "a b c d e"}, "finish_reason": "stop"}
            return self.give(
                [json.dumps({**one, "object": "chat.completion", "choices": [choice]})], "application/json"
            )
        deltas = [{"index": 0, "delta": {"content": f"{word} "}, "finish_reason": None} for word in "abcde"]
        deltas.append({"index": 0, "delta": {}, "finish_reason": "stop"})
        chunks = [json.dumps({**one, "object": "chat.completion.chunk", "choices": [delta]}) for delta in deltas]
        return self.give([f"data: {chunk}\n\n" for chunk in [*chunks, "[DONE]"]], "text/event-stream")

    def give(self, pieces: list[str], media: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", media)
        self.send_header("Content-Length", str(sum(map(len, pieces))))
        self.end_headers()
        for piece in pieces:
            self.wfile.write(piece.encode())
            self.wfile.flush()
            time.sleep(0.01)

    def log_message(self, *_: Any) -> None:
        pass


@attrs.define(eq=False)
class Site:
    """All that can be hit, of the nodes those that are `mortal`."""

    nodes: list[Node]
    mortal: list[Node]
    model: Gate
    objects: Gate
    bucket: ObjectServer
    postgres: PostgresServer | None
    ports: list[int]
    seen: Seen
    hearts: Hearts
    short: bool = False
    free: Any = attrs.field(factory=threading.Lock)
    targets: set[str] = attrs.field(factory=set)
    hits: Counter[str] = attrs.field(factory=Counter)

    def hit(self, chance: random.Random) -> None:
        """Do one fault to a target that has none now, to its end."""
        while True:
            target, fault = chance.choice(FAULTS)
            target = target if target != "node" else chance.choice(self.mortal).name
            if target == "postgres" and self.postgres is None:
                continue
            with self.free:
                if target not in self.targets:
                    self.targets.add(target)
                    break
        try:
            self.hits[fault(self, target, chance)] += 1
        finally:
            self.targets.discard(target)
        time.sleep(chance.uniform(0, 0.5))


def pause(site: Site, seconds: float) -> None:
    time.sleep(SHORTEST if site.short else seconds)


def hang_up(site: Site, target: str, chance: random.Random) -> str:
    Caller(site.ports, site.seen, chance).hang_up()
    return "client killed"


def away(site: Site, gate: Gate, chance: random.Random) -> str:
    refuses = chance.random() < 0.5
    with gate.refusing() if refuses else gate.holding():
        pause(site, chance.uniform(0.1, 5))
    return "refuses" if refuses else "hangs"


def model_away(site: Site, target: str, chance: random.Random) -> str:
    return f"model server {away(site, site.model, chance)}"


def objects_away(site: Site, target: str, chance: random.Random) -> str:
    if chance.random() < 0.6:
        return f"object store {away(site, site.objects, chance)}"
    site.bucket.busy = True
    pause(site, chance.uniform(0.1, 5))
    site.bucket.busy = False
    return "object store 503"


def cut(site: Site, target: str, chance: random.Random) -> str:
    backends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'modelyard'"
    assert site.postgres is not None
    with suppress(psycopg.Error):
        site.postgres.execute(f"{backends} AND random() < {chance.choice([0.3, 1])}")
    return "connections cut"


def stop_postgres(site: Site, target: str, chance: random.Random) -> str:
    assert site.postgres is not None
    long = chance.random() < LONG_ONES and not site.short
    site.postgres.stop(chance.choice(["fast", "immediate"]))
    pause(site, LONG_OUTAGE if long else chance.uniform(0, 4))
    site.postgres.start()
    return f"PostgreSQL stopped{' for 30 s' if long else ''}"


def end(site: Site, target: str, chance: random.Random) -> str:
    how = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
    next(node for node in site.nodes if node.name == target).end(how)
    return f"{target.rstrip('01')} {how.name}"


def freeze(site: Site, target: str, chance: random.Random) -> str:
    next(node for node in site.nodes if node.name == target).freeze(SHORTEST if site.short else FROZEN)
    return f"{target.rstrip('01')} frozen"


Fault = Callable[[Site, str, random.Random], str]
FAULTS: list[tuple[str, Fault]] = [
    *[("client", hang_up)] * 4,
    *[("model", model_away)] * 3,
    *[("objects", objects_away)] * 3,
    *[("postgres", cut)] * 4,
    *[("postgres", stop_postgres)] * 1,
    *[("node", end)] * 4,
    *[("node", freeze)] * 1,
]


# ---- the site ------------------------------------------------------------------------------------------------------


@contextmanager
def site_on(kind: str, sabotage: str, short: bool) -> Iterator[tuple[Site, Platform]]:
    """Start everything; the platform is that of the campaign itself, which nothing sabotages."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="faults-")))
        postgres, store = None, str(folder / "yard.db")
        if kind == "postgresql":
            binaries = server_folder()
            assert binaries is not None, "no PostgreSQL is installed"
            postgres = PostgresServer(binaries)
            stack.callback(postgres.close)
            store = postgres.create_database()
        bucket = stack.enter_context(object_server())
        server = ModelServer(("127.0.0.1", 0), Model)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        model, objects = Gate(server.server_port), Gate(bucket.port)
        for close in (server.shutdown, model.close, objects.close):
            stack.callback(close)
        environment = {
            "FLEET_STORE": store,
            "FLEET_BUCKET": "yard",
            "FLEET_CACHE": str(folder / "cache"),
            "FLEET_MODEL_SERVER": f"http://127.0.0.1:{model.port}/v1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{objects.port}",
            "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "examplesecret",
            "AWS_REGION": "us-east-1",
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
        }
        os.environ.update(environment)
        opened = stack.enter_context(platform())
        seen = prepared(opened)
        os.environ["FLEET_SABOTAGE"] = sabotage
        ports = free_ports(2)
        nodes = [Node(f"server{n}", ["serve", "--port", str(port)], folder) for n, port in enumerate(ports)]
        nodes += [Node(f"worker{n}", ["work"], folder) for n in range(2)]
        for node in nodes:
            node.start()
            stack.callback(lambda node=node: (node.process.kill(), node.process.wait()))
        mortal = nodes[:2] if sabotage in OF_WORKERS else nodes
        hearts = Hearts(opened, seen.broken)
        yield Site(nodes, mortal, model, objects, bucket, postgres, ports, seen, hearts, short), opened


def run(site: Site, faults: int, seed: int) -> None:
    """Let callers ask while faults hit, and then wait until all have come back and every job has ended."""
    many = CALLERS_OF_SHORT if site.short else CALLERS
    callers = [Caller(site.ports, site.seen, random.Random(f"{seed} caller {n}")) for n in range(many)]
    ended, numbers = threading.Event(), itertools.count()

    def torment(n: int) -> None:
        chance = random.Random(f"{seed} faults {n}")
        while next(numbers) < faults:
            site.hit(chance)

    def call(caller: Caller) -> None:
        while not ended.is_set():
            caller.do_one()

    asking = [threading.Thread(target=call, args=[caller], daemon=True) for caller in callers]
    hitting = [threading.Thread(target=torment, args=[n], daemon=True) for n in range(TORMENTORS)]
    assert watch(site, callers[0].all_ready)
    callers[0].prepare()
    for caller in callers:
        caller.job()
    for thread in [*asking, *hitting]:
        thread.start()
    watch(site, lambda: not any(thread.is_alive() for thread in hitting), longest=float("inf"))
    ended.set()
    watch(site, lambda: not any(thread.is_alive() for thread in asking))
    if not watch(site, callers[0].all_ready):
        site.seen.broken.append("a server does not come back")
    before, now = list[str](), callers[0].open_jobs()
    while now and now != before and not site.seen.broken:
        before, long = now, site.hearts.beats + STILL
        watch(site, lambda long=long: site.hearts.beats > long or site.seen.broken or not callers[0].open_jobs())
        now = callers[0].open_jobs()
    site.seen.broken += [f"a job has not ended: {one}" for one in now]


def watch(site: Site, until: Callable[[], object], longest: float = LONGEST_RETURN) -> bool:
    """Start again what ends by itself until the condition holds; return whether it does in time."""
    deadline = time.monotonic() + longest
    while not (held := bool(until())) and time.monotonic() < deadline:
        for node in site.nodes:
            node.look()
        site.hearts.look(calm=site.targets.isdisjoint({"model", "objects"}))
        time.sleep(0.2)
    return held


# ---- what must be true in the end ------------------------------------------------------------------------------------


def check(site: Site, opened: Platform) -> None:
    seen, reader = site.seen, Caller(site.ports, site.seen, random.Random(0))
    booked = Counter(entry.id for entry in opened.usage.list(entity="acme"))
    reader.read_all()
    seen.broken += [
        f"completion {id} is in the ledger {booked[id]} times" for id in seen.completions if booked[id] != 1
    ]
    budget, totals = opened.usage.get_budget(entity="acme"), opened.usage.total(entity="acme")
    assert budget is not None
    if (budget.reserved, budget.spent) != (0, sum(total.cost for total in totals)):
        seen.broken.append(f"the budget is {budget}, and {totals} was booked")
    seen.broken += [f"a file is missing: {fault}" for fault in file_faults(opened._runtime)]
    logs = {log: log.read_text(errors="replace") for log in sorted(site.nodes[0].folder.glob("*.log"))}
    fair = {name: at for node in site.nodes for log, at in node.disturbed.items() for name in NAMED.findall(logs[log])}
    for log, text in logs.items():
        taken = [name for at, name in TAKEN.findall(text) if moment(at) < fair.get(name, float("inf"))]
        seen.broken += [f"{log.name}: a job was taken from worker {name}, which lived" for name in taken]
    ended = [one for node in site.nodes for one in node.ended_alone]
    seen.broken += ended
    seen.notes["ended by themselves, and started again"] = ended
    seen.notes["tracebacks in the logs"] = dict(Counter(e for text in logs.values() for e in tracebacks(text)))


def moment(logged: str) -> float:
    seconds, milliseconds = logged.split(",")
    return time.mktime(time.strptime(seconds, "%Y-%m-%d %H:%M:%S")) + int(milliseconds) / 1000


def tracebacks(log: str) -> Iterator[str]:
    """Yield the last line of each traceback."""
    for part in log.split("Traceback (most recent call last):")[1:]:
        lines = [line for line in part.splitlines()[1:] if line and not line.startswith(" ")]
        if lines and not re.match(r"\d{4}-", lines[0]):
            yield re.sub(r"[0-9a-f-]{20,}", "…", lines[0][:100])


def campaign(faults: int, seed: int, store: str, sabotage: str, short: bool) -> dict[str, Any]:
    """Return the report of a campaign."""
    begun = time.monotonic()
    with site_on(store, "" if sabotage == "lose a file" else sabotage, short) as (site, opened):
        run(site, faults, seed)
        if sabotage == "lose a file":
            lost = next(opened._runtime.artifacts.names())
            opened._runtime.artifacts.remove(lost)
        check(site, opened)
        return {
            "faults": dict(sorted(site.hits.items())),
            "seed": seed,
            "store": store,
            "seconds": round(time.monotonic() - begun),
            **site.seen.report(),
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", choices=["postgresql", "sqlite"], default="postgresql")
    parser.add_argument("--sabotage", choices=[*SABOTAGES], default="")
    parser.add_argument("--short", action="store_true", help="make each outage short")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    report = campaign(options.faults, options.seed, options.store, options.sabotage, options.short)
    print(json.dumps(report, indent=1))
    return int(bool(report["broken"]))


if __name__ == "__main__":
    sys.exit(main())
