"""A small S3-compatible server in memory, for processes that keep artifacts in it. It checks no signature."""

import hashlib
import itertools
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import attrs


@attrs.define(eq=False)
class ObjectServer:
    """The objects by their keys, `bucket/name`. While it is `busy` it answers everything with 503."""

    port: int = 0
    busy: bool = False
    objects: dict[str, bytes] = attrs.field(factory=dict)
    parts: dict[str, dict[int, bytes]] = attrs.field(factory=dict)
    uploads: Iterator[int] = attrs.field(factory=itertools.count)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Nothing: clients that are killed leave in the middle."""


@contextmanager
def object_server() -> Iterator[ObjectServer]:
    served = ObjectServer()
    server = _Server(("127.0.0.1", 0), type("Bound", (_Requests,), {"served": served}))
    served.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served: ObjectServer

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(30)

    def _asked(self) -> tuple[str, dict[str, str], bytes]:
        """The key, the query and the body of a request."""
        address = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(address.query, keep_blank_values=True).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return unquote(address.path).strip("/"), query, body

    def _give(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        self._give(status, f"<Error><Code>{code}</Code></Error>".encode(), Content_Type="application/xml")

    def _is_busy(self) -> bool:
        if self.served.busy:
            self._refuse(503, "SlowDown")
        return self.served.busy

    def do_PUT(self) -> None:
        key, query, body = self._asked()
        if self._is_busy():
            return
        if "uploadId" in query:
            self.served.parts[query["uploadId"]][int(query["partNumber"])] = body
        else:
            self.served.objects[key] = body
        self._give(200, ETag=_tag(body))

    def do_POST(self) -> None:
        key, query, body = self._asked()
        if self._is_busy():
            return
        if "delete" in query:
            names = re.findall(r"<Key>([^<]*)</Key>", body.decode())
            for name in names:
                self.served.objects.pop(f"{key}/{name}", None)
            deleted = "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in names)
            self._give(200, f"<DeleteResult>{deleted}</DeleteResult>".encode(), Content_Type="application/xml")
        elif "uploads" in query:
            number = str(next(self.served.uploads))
            self.served.parts[number] = {}
            self._give(200, f"<InitiateMultipartUploadResult><UploadId>{number}</UploadId>"
                            "</InitiateMultipartUploadResult>".encode())  # fmt: skip
        else:
            parts = self.served.parts.pop(query["uploadId"])
            self.served.objects[key] = b"".join(parts[number] for number in sorted(parts))
            self._give(200, b"<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>")

    def do_DELETE(self) -> None:
        key, query, _ = self._asked()
        if self._is_busy():
            return
        self.served.parts.pop(query.get("uploadId", ""), None)
        self.served.objects.pop(key, None)
        self._give(204)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        key, query, _ = self._asked()
        if self._is_busy():
            return None
        if "list-type" in query:
            return self._give(200, self._list(key, query.get("prefix", "")), Content_Type="application/xml")
        found = self.served.objects.get(key)
        if found is None:
            return self._refuse(404, "NoSuchKey")
        dated = {"ETag": _tag(found), "Last_Modified": "Mon, 02 Mar 2026 09:30:00 GMT"}
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if span is None:
            return self._give(200, found, **dated)
        first, last = int(span[1]), min(int(span[2] or len(found)), len(found) - 1)
        if first > last:
            return self._refuse(416, "InvalidRange")
        shown = f"bytes {first}-{last}/{len(found)}"
        return self._give(206, found[first : last + 1], Content_Range=shown, **dated)

    def _list(self, bucket: str, prefix: str) -> bytes:
        entries = [
            f"<Contents><Key>{escape(key.removeprefix(f'{bucket}/'))}</Key><Size>{len(content)}</Size>"
            f"<LastModified>2026-03-02T09:30:00.000Z</LastModified><ETag>{_tag(content)}</ETag></Contents>"
            for key, content in sorted(self.served.objects.items())
            if key.startswith(f"{bucket}/{prefix}")
        ]
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(entries)}</ListBucketResult>".encode()

    def log_message(self, *_: object) -> None:
        """Nothing."""


def _tag(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'
