"""A hub of models on loopback, with the faults that a real one has."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import attrs

LARGE = 1000
"""Bytes from which on a file is in large-file storage, which is elsewhere."""


def git_digest(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@attrs.define
class Hub:
    """Models by name, each with its files. What a test sets, goes wrong from then on."""

    url: str = ""
    models: dict[str, dict[str, bytes]] = attrs.field(factory=dict, repr=False)
    commits: dict[str, str] = attrs.field(factory=dict)
    branches: dict[str, str] = attrs.field(factory=lambda: {"main": "a" * 40})
    gated: set[str] = attrs.field(factory=set)
    private: set[str] = attrs.field(factory=set)
    token: str = "hf_secret"
    cuts: dict[str, list[int]] = attrs.field(factory=dict)
    """After how many bytes the next answers with a large file end."""
    busy: int = 0
    """How many of the next requests are refused with 429."""
    retry_after: str = "7"
    busy_at: set[str] = attrs.field(factory=set)
    """Files of which the next request is refused with 429."""
    licenses: dict[str, str] = attrs.field(factory=dict)
    sent: dict[str, bytes] = attrs.field(factory=dict, repr=False)
    """Files that are sent with other bytes than the digest is of."""
    no_digests: bool = False
    asked: list[tuple[str, str, str]] = attrs.field(factory=list)
    """Method, path and Range of each request."""
    tokens: list[tuple[str, str]] = attrs.field(factory=list)
    """Path and token of each request."""
    takes: "Callable[[Hub, str, str, bytes], tuple[int, Any]] | None" = None
    """What answers requests that write: none are answered without."""
    pushed: Any = None
    """What it was sent."""

    def data(self, name: str, file: str) -> bytes:
        return self.sent.get(file, self.models[name][file])

    def cut(self, file: str, after: list[int]) -> None:
        self.cuts[file] = [*after]

    def refuses(self, path: str) -> bool:
        """Whether it is too busy for this request, and not again."""
        if self.busy:
            self.busy -= 1
            return True
        named = {file for file in self.busy_at if path.endswith(f"/{file}")}
        self.busy_at -= named
        return bool(named)

    def info(self, name: str, commit: str) -> dict[str, Any]:
        siblings = [self._sibling(*file) for file in self.models[name].items()]
        private = self.pushed is not None and self.pushed.private.get(name, name in self.private)
        tags = [f"license:{self.licenses[name]}"] if name in self.licenses else []
        return {"id": name, "sha": commit, "siblings": siblings, "private": private, "tags": ["lora", *tags]}

    def _sibling(self, file: str, data: bytes) -> dict[str, Any]:
        one: dict[str, Any] = {"rfilename": file, "size": len(data)}
        if not self.no_digests:
            one["blobId"] = git_digest(data)
            if len(data) >= LARGE:
                one |= {"blobId": "0" * 40, "lfs": {"sha256": _sha256(data), "size": len(data), "pointerSize": 1}}
        return one


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    hub: Hub


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        hub, path = cast(_Server, self.server).hub, self.path.partition("?")[0].strip("/")
        body, token = self._body(), self.headers.get("Authorization", "")
        hub.asked.append((self.command, path, ""))
        hub.tokens.append((path, token))
        if hub.refuses(path):
            self._send(429, b"{}", {"Retry-After": hub.retry_after})
        elif hub.takes is None or (token != f"Bearer {hub.token}" and not path.startswith("stored/")):
            self._send(401, b"{}", {})
        else:
            status, said = hub.takes(hub, self.command, path, body)
            self._send(status, json.dumps(said).encode(), {"Content-Type": "application/json"})

    do_PUT = do_POST

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        data = b""
        while size := int(self.rfile.readline(), 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub, path = cast(_Server, self.server).hub, self.path.partition("?")[0].strip("/")
        hub.asked.append((self.command, path, self.headers.get("Range", "")))
        hub.tokens.append((path, self.headers.get("Authorization", "")))
        if hub.refuses(path):
            self._send(429, b"{}", {"Retry-After": hub.retry_after})
        elif path.startswith("storage/"):
            self._stored(hub, path)
        elif path.startswith("api/models/"):
            self._info(hub, path)
        else:
            self._resolve(hub, path)

    def _info(self, hub: Hub, path: str) -> None:
        _, _, org, name, *rest = path.split("/")
        model, revision = f"{org}/{name}", rest[1] if rest else "main"
        if self._refused(hub, model, revision):
            return
        self._send(200, json.dumps(hub.info(model, hub.branches.get(revision, revision))).encode())

    def _refused(self, hub: Hub, model: str, revision: str) -> bool:
        known = self.headers.get("Authorization") == f"Bearer {hub.token}"
        if model not in hub.models or (model in hub.private and not known):
            self._send(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif model in hub.gated and not known:
            self._send(403, b"{}", {"X-Error-Code": "GatedRepo"})
        elif revision not in {*hub.branches, *hub.branches.values()}:
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        else:
            return False
        return True

    def _resolve(self, hub: Hub, path: str) -> None:
        org, name, _, revision, *file = [*path.split("/"), "", "", ""]
        model, name = f"{org}/{name}", "/".join(file).rstrip("/")
        if self._refused(hub, model, revision):
            return
        if name not in hub.models[model]:
            self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"})
            return
        data, commit = hub.models[model][name], hub.branches.get(revision, revision)
        large = len(data) >= LARGE
        heads = {"X-Repo-Commit": commit, "ETag": f'"{git_digest(data)}"'}
        if large:
            heads |= {"X-Linked-Etag": f'"{_sha256(data)}"', "X-Linked-Size": str(len(data))}
            heads["Location"] = f"{hub.url.replace('127.0.0.1', 'localhost')}/storage/{model}/{name}?signature=s3cr3t"
            self._send(302, b"", heads)
        else:
            self._send(200, hub.data(model, name), heads)

    def _stored(self, hub: Hub, path: str) -> None:
        _, org, name, *file = path.split("/")
        whole = hub.data(f"{org}/{name}", "/".join(file))
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        data, heads = whole[start:], {"Accept-Ranges": "bytes"}
        if start:
            heads["Content-Range"] = f"bytes {start}-{len(whole) - 1}/{len(whole)}"
        cuts = hub.cuts.get("/".join(file), []) if self.command == "GET" else []
        cut = cuts.pop(0) if cuts else None
        self._send(206 if start else 200, data, heads, cut)

    def _send(self, status: int, data: bytes, heads: dict[str, str] | None = None, cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in {**(heads or {}), "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data if cut is None else data[:cut])
        self.close_connection = cut is not None


@contextmanager
def hub_of(**models: Path) -> Iterator[Hub]:
    """A hub with models of folders, by the names of their last part: `hub_of(tiny=folder)` has org/tiny."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.hub = Hub(f"http://127.0.0.1:{server.server_port}")
    for name, folder in models.items():
        files = [path for path in folder.rglob("*") if path.is_file()]
        server.hub.models[f"org/{name}"] = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server.hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
