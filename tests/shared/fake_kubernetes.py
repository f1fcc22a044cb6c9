"""A stand-in of the Kubernetes API for `batch/v1` Jobs: it refuses what the published schema refuses, and runs the
command of each Job as a process of this machine, as many at a time as it has room for.
"""

import json
import os
import signal
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import attrs
import kubernetes_validate

from modelyard.clock import SystemClock

VERSION = "1.30"
"""Whose schema is meant."""
TOKEN = "a-token"


@attrs.define(eq=False)
class FakeJob:
    """A Job that was made, and its pod: pending, running or ended."""

    manifest: dict[str, Any]
    log: Path
    process: "subprocess.Popen[bytes] | None" = None
    status: int | None = None
    disruption: str = ""
    pending: dict[str, Any] | None = attrs.field(factory=dict)
    """What its pod shows while it waits; None while there is no pod."""
    made: str = attrs.field(factory=lambda: SystemClock().now().isoformat(timespec="seconds"))
    started: str | None = None
    """When it was resumed, or else made; None while it is suspended."""

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    def start(self) -> None:
        command = self.manifest["spec"]["template"]["spec"]["containers"][0]["command"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def end(self, sent: signal.Signals = signal.SIGKILL) -> None:
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, sent)
            self.process.wait(60)

    def look(self) -> None:
        if self.process is not None and self.status is None and (status := self.process.poll()) is not None:
            self.status = 128 - status if status < 0 else status

    @property
    def shown(self) -> dict[str, Any]:
        """The Job as the API shows it."""
        if self.status is None:
            began = {} if self.started is None else {"startTime": self.started}
            status: dict[str, Any] = {"active": 1, "ready": 1 if self.process else 0, **began}
        elif self.status == 0:
            status = {"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]}
        else:
            why = "BackoffLimitExceeded"
            status = {"failed": 1, "conditions": [{"type": "Failed", "status": "True", "reason": why}]}
        metadata = {**self.manifest["metadata"], "creationTimestamp": self.made}
        return {**self.manifest, "metadata": metadata, "status": status}

    @property
    def pod(self) -> dict[str, Any]:
        """Its pod."""
        labels = {**self.manifest["spec"]["template"]["metadata"]["labels"], "job-name": self.name}
        status: dict[str, Any] = {"phase": "Pending", **(self.pending or {})}
        if self.status is not None:
            ended = {"exitCode": self.status, "reason": "Error" if self.status else "Completed"}
            status = {"phase": "Failed", "containerStatuses": [{"state": {"terminated": ended}}]}
        if self.disruption:
            moved = {"type": "DisruptionTarget", "status": "True", "reason": self.disruption}
            status = {**status, "conditions": [moved]}
        metadata = {"name": f"{self.name}-x7k2p", "labels": labels, "creationTimestamp": self.made}
        return {"metadata": metadata, "status": status}


class FakeKubernetes:
    """The server, with `room` for so many pods at a time. `requests` are the methods and paths that it was asked."""

    def __init__(
        self,
        folder: Path,
        room: int = 8,
        pem: Path | None = None,
        token: str | None = TOKEN,
        namespace: str = "ml",
    ) -> None:
        self.folder, self.room, self.token, self.namespace = folder, room, token, namespace
        self.jobs: dict[str, FakeJob] = {}
        self.requests: list[str] = []
        self.date: str | None = None
        self._lock = threading.Lock()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                with fake._lock:
                    status, answer = fake.answer(self.command, self.path, self.headers.get("authorization"), body)
                data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_DELETE = answer

            def date_time_string(self, timestamp: float | None = None) -> str:
                return super().date_time_string(timestamp) if fake.date is None else fake.date

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if pem is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(pem)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        kind, port = "http" if pem is None else "https", self._server.server_port
        self.address = f"{kind}://127.0.0.1:{port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        for job in self.jobs.values():
            job.end()

    # ---- the API

    def answer(self, method: str, target: str, authorization: str | None, body: Any) -> tuple[int, Any]:
        self.requests.append(f"{method} {target.partition('?')[0]}")
        if self.token is not None and authorization != f"Bearer {self.token}":
            return _status(401, "Unauthorized", "Unauthorized")
        self._schedule()
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        match parts.path.strip("/").split("/"):
            case ["apis", "batch", "v1", "namespaces", self.namespace, "jobs", *rest]:
                return self._answer_jobs(method, rest, query, body)
            case ["api", "v1", "namespaces", self.namespace, "pods"]:
                return 200, {"items": [pod for pod in self._pods if _fits(pod, query)]}
            case ["api", "v1", "namespaces", self.namespace, "pods", pod, "log"]:
                found = [job for job in self.jobs.values() if job.pod["metadata"]["name"] == pod]
                lines = found[0].log.read_text().splitlines()[-int(query["tailLines"]) :]
                return 200, "\n".join(lines)
        return _status(403, "Forbidden", f"jobs.batch is forbidden: {parts.path}")

    @property
    def _pods(self) -> list[dict[str, Any]]:
        return [job.pod for job in self.jobs.values() if job.pending is not None]

    def _answer_jobs(self, method: str, rest: list[str], query: Any, body: Any) -> tuple[int, Any]:
        if method == "POST":
            return self._make(body)
        if method == "GET":
            return 200, {"items": [job.shown for job in self.jobs.values() if _fits(job.manifest, query)]}
        job = self.jobs.pop(rest[0], None)
        if job is None:
            return _status(404, "NotFound", f'jobs.batch "{rest[0]}" not found')
        job.end(signal.SIGTERM)
        return 200, job.shown

    def _make(self, body: Any) -> tuple[int, Any]:
        try:
            kubernetes_validate.validate(body, VERSION, strict=True)
        except kubernetes_validate.ValidationError as error:
            return _status(422, "Invalid", str(error))
        name = body["metadata"]["name"]
        if name in self.jobs:
            return _status(409, "AlreadyExists", f'jobs.batch "{name}" already exists')
        self.jobs[name] = FakeJob(body, self.folder / f"{name}.log")
        self._schedule()
        return 201, self.jobs[name].shown

    def _schedule(self) -> None:
        for job in self.jobs.values():
            job.look()
        running = sum(job.process is not None and job.status is None for job in self.jobs.values())
        waiting = [job for job in self.jobs.values() if job.process is None and job.pending == {}]
        for job in waiting[: max(0, self.room - running)]:
            job.start()


def _fits(thing: Any, query: dict[str, str]) -> bool:
    name, _, value = query.get("labelSelector", "").partition("=")
    return not name or thing["metadata"].get("labels", {}).get(name) == value


def _status(code: int, reason: str, message: str) -> tuple[int, Any]:
    return code, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message}
