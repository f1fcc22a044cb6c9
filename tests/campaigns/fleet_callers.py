"""Callers of a fleet that is hit by faults: what they ask, what they were answered, and whether all of it is there."""

import base64
import json
import random
import re
import socket
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from typing import Any

import attrs

from forms import HEADER, form
from modelyard import Platform

OBJECT = "weave:///acme/desk/object/"
ROWS = [{"prompt": f"say {n}", "expected": f"say {n}"} for n in range(30)]
STEPS = 200
PATIENCE = 60.0
FAILED, SUCCEEDED = re.compile("failed|cancel"), re.compile("succeeded|complete'")
EXPECTED = {429, 503}
BACKEND_AWAY = 502, "backend_error"
"""What a request is answered for the model that another server serves, and no other request."""
JSON = "application/json"


@attrs.frozen
class Reply:
    status: int
    headers: Mapping[str, str]
    raw: bytes


@attrs.define
class Job:
    """How the state of a job is asked, and what was last answered."""

    method: str
    path: str
    body: Any = None
    shown: Any = None


@attrs.define
class Seen:
    """What callers were answered. `paths` are to be readable in the end, with the bytes that they must have, if known.
    `jobs` are those that are not known to have ended, of so many that were `begun`."""

    secret: str
    data: str = ""
    completions: list[str] = attrs.field(factory=list)
    paths: list[tuple[str, bytes | None]] = attrs.field(factory=list)
    begun: int = 0
    jobs: list[Job] = attrs.field(factory=list)
    statuses: Counter[str] = attrs.field(factory=Counter)
    broken: list[str] = attrs.field(factory=list)
    notes: dict[str, Any] = attrs.field(factory=dict)

    def report(self) -> dict[str, Any]:
        return {
            "answers": dict(sorted(self.statuses.items())),
            "acknowledged": {"completions": len(self.completions), "records": len(self.paths), "jobs": self.begun},
            **self.notes,
            "broken": self.broken,
        }


def prepared(platform: Platform) -> Seen:
    """Give an entity a key and a budget."""
    secret = platform.keys.create("acme", name="callers").secret
    platform.usage.set_budget(10**6, entity="acme")
    return Seen(secret)


@attrs.define
class Caller:
    ports: list[int]
    seen: Seen
    chance: random.Random
    own_job: Job | None = None

    # ---- the wire

    def send(self, method: str, path: str, body: Any = None, media: str = JSON, basic: bool = False) -> Reply | None:
        """Return the answer, or None where the connection ended before it. What no caller may get is noted."""
        try:
            reply = self._exchange(method, path, body, media, basic)
        except (OSError, HTTPException) as error:
            self.seen.statuses[type(error).__name__] += 1
            time.sleep(0.1)
            return None
        self.seen.statuses[str(reply.status)] += 1
        if reply.status == 503:
            time.sleep(0.1)
        later = reply.status != 503 or int(reply.headers.get("retry-after", 0)) >= 1
        if not (200 <= reply.status < 300 or reply.status in EXPECTED or _is_of_backend(reply, body)) or not later:
            self.seen.broken.append(f"{method} {path} was answered {reply}")
        return reply

    def _exchange(self, method: str, path: str, body: Any, media: str, basic: bool) -> Reply:
        """Ask a server, and the other one where nothing listens, as a load balancer does."""
        ports = self.chance.sample(self.ports, len(self.ports))
        for port in ports[:-1]:
            with suppress(ConnectionRefusedError):
                return self._exchange_with(port, method, path, body, media, basic)
        return self._exchange_with(ports[-1], method, path, body, media, basic)

    def _exchange_with(self, port: int, method: str, path: str, body: Any, media: str, basic: bool) -> Reply:
        connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        try:
            secret = self.seen.secret
            auth = f"Basic {base64.b64encode(f'api:{secret}'.encode()).decode()}" if basic else f"Bearer {secret}"
            data = body if body is None or isinstance(body, bytes) else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": media, "Authorization": auth})
            answer = connection.getresponse()
            headers = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, headers, answer.read())
        finally:
            connection.close()

    def ok(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        reply = self.send(method, path, body, **more)
        return json.loads(reply.raw) if reply is not None and reply.status < 300 else None

    # ---- what is asked

    def do_one(self) -> None:
        ways = [*[self.chat] * 5, *[self.stream] * 4, self.store, self.respond, self.file, self.look, *[self.job] * 2]
        self.chance.choice(ways)()

    def _asked(self, **more: Any) -> dict[str, Any]:
        model = self.chance.choice(["echo", "served"])
        return {"model": model, "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 9, **more}

    def chat(self) -> bool:
        if made := self.ok("POST", "/v1/chat/completions", self._asked()):
            self.seen.completions.append(made["id"])
        return made is not None

    def stream(self) -> None:
        reply = self.send("POST", "/v1/chat/completions", self._asked(stream=True))
        if reply is None or reply.status != 200:
            return
        events = [event.removeprefix(b"data: ") for event in reply.raw.split(b"\n\n") if event.startswith(b"data: ")]
        if events[-1:] == [b"[DONE]"]:
            self.seen.completions.append(json.loads(events[0])["id"])
        elif not any(b'"error"' in event for event in events[-1:]):
            self.seen.broken.append(f"a stream ended without an end: {reply.raw[-300:]!r}")

    def store(self) -> None:
        if made := self.ok("POST", "/v1/chat/completions", self._asked(store=True)):
            self.seen.completions.append(made["id"])
            self.seen.paths.append((f"/v1/chat/completions/{made['id']}", None))

    def respond(self) -> None:
        if made := self.ok("POST", "/v1/responses", {"model": self.chance.choice(["echo", "served"]), "input": "hi"}):
            self.seen.paths.append((f"/v1/responses/{made['id']}", None))

    def file(self) -> None:
        content = self.chance.randbytes(20_000).hex().encode()
        body = form({"purpose": "user_data"}, content)
        if made := self.ok("POST", "/v1/files", body, media=HEADER[1]):
            self.seen.paths.append((f"/v1/files/{made['id']}/content", content))

    def look(self) -> None:
        for path in ("/v1/models", "/v1/files?limit=1", "/v1/chat/completions?limit=1", "/v1/preview/training-jobs"):
            self.ok("GET", path)

    def job(self) -> None:
        """Begin a training or an evaluation, unless the one that it began before runs."""
        if self.own_job is not None and not self.ended(self.own_job):
            return
        begun = self.chance.choice([self._train, self._evaluate])()
        if begun is not None:
            self.seen.jobs.append(begun)
            self.seen.begun += 1
        self.own_job = begun

    def _train(self) -> Job | None:
        name = f"m{self.chance.getrandbits(60)}"
        model = self.ok("POST", "/v1/preview/models", {"project": "desk", "name": name, "base_model": "tabular-mini"})
        asked = model and {"model_id": model["id"], "training_data_url": self.seen.data, "config": {"batch_size": 1}}
        made = asked and self.ok("POST", "/v1/preview/sft-training-jobs", asked)
        return Job("GET", f"/v1/preview/training-jobs/{made['id']}") if made else None

    def _evaluate(self) -> Job | None:
        about = {"evaluation_ref": f"{OBJECT}quiz:v0", "model_ref": f"{OBJECT}{self.chance.choice(['echo', 'served'])}"}
        made = self.ok("POST", "/evaluations/evaluate_model", {"project_id": "acme/desk", **about}, basic=True)
        body = made and {"project_id": "acme/desk", "call_id": made["call_id"]}
        return Job("POST", "/evaluations/status", body) if made else None

    def ended(self, job: Job) -> bool:
        job.shown = self.ok(job.method, job.path, job.body, basic=job.method == "POST")
        status = "" if job.shown is None else str(job.shown["status"])
        if FAILED.search(status):
            self.seen.broken.append(f"a job failed: {job.shown}")
        return bool(FAILED.search(status) or SUCCEEDED.search(status))

    def hang_up(self) -> None:
        """Send a request, whole or in part, and end the connection without reading, or in the middle of the answer."""
        body = json.dumps(self._asked(stream=self.chance.random() < 0.7)).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.seen.secret}\r\n"
        request = f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.chance.choice(self.ports)), 5) as near:
            near.sendall(request[: self.chance.choice([len(request), self.chance.randrange(len(request))])])
            near.settimeout(self.chance.choice([0.01, 0.2]))
            near.recv(self.chance.choice([1, 1000]))

    # ---- before, and in the end

    def prepare(self) -> None:
        """Publish what jobs need."""
        turn = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "green"}]
        data = json.dumps({"messages": turn}).encode() + b"\n"
        self.seen.data = self.ok("POST", "/v1/preview/datasets?project=desk&name=answers", data * STEPS)["url"]
        for kind, body in (
            ("datasets", {"name": "rows", "rows": ROWS}),
            ("scorers", {"name": "same", "scorer": {"type": "exact_match"}}),
            ("evaluations", {"name": "quiz", "dataset": f"{OBJECT}rows:v0", "scorers": [f"{OBJECT}same:v0"]}),
        ):
            assert self.ok("POST", f"/v2/acme/desk/{kind}", body, basic=True)

    def all_ready(self) -> bool:
        """Return whether each server is ready, and takes jobs, since a worker is alive."""
        return all(attrs.evolve(self, ports=[port])._ready() for port in self.ports)

    def _ready(self) -> bool:
        with suppress(OSError, HTTPException):
            return self._exchange("GET", "/readyz", None, JSON, False).status == 200 and self.chat()
        return False

    def open_jobs(self) -> list[str]:
        """Return what is known of each job that has not ended, with how far it has come."""
        self.seen.jobs = [job for job in self.seen.jobs if not self.ended(job)]
        return [str(job) for job in self.seen.jobs]

    def read_all(self) -> None:
        for path, content in self.seen.paths:
            reply = self.send("GET", path)
            if reply is None or reply.status != 200 or content not in (None, reply.raw):
                self.seen.broken.append(f"{path} was acknowledged, and is read as {reply and reply.status}")


def _is_of_backend(reply: Reply, body: Any) -> bool:
    if not isinstance(body, dict) or body.get("model") != "served" or reply.status != BACKEND_AWAY[0]:
        return False
    return json.loads(reply.raw)["error"]["code"] == BACKEND_AWAY[1]
