"""moto's server in a thread, within a middleware that fails as a test asks it to."""

import itertools
import logging
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest
from botocore.session import Session
from moto.server import DomainDispatcherApplication, create_backend_app
from obstore.store import S3Store
from werkzeug.serving import make_server

from modelyard.parts.objects.store import ObjectArtifacts

KEY, SECRET = "AKIDEXAMPLE", "examplesecretexamplesecret"
RETRIES = {
    "max_retries": 4,
    "retry_timeout": timedelta(seconds=20),
    "backoff": {"init_backoff": timedelta(milliseconds=1), "max_backoff": timedelta(milliseconds=5), "base": 2},
}
NUMBERS = itertools.count()


@attrs.define
class Server:
    """What the server does to requests before, or in place of, answering them."""

    app: Any
    url: str = ""
    fault: Callable[[dict[str, Any]], str | None] = lambda environ: None
    """Returns "busy", "none", "cut" or "half" for a request that is to fail so."""

    ahead: timedelta = timedelta()
    age: timedelta = timedelta()
    """How long ago it says that the uploads which are not finished began."""

    asked: list[str] = attrs.field(factory=list)
    owner: Any = None

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        self.asked.append(environ["REQUEST_METHOD"])
        match self.fault(environ):
            case "busy":
                return refuse(start, "503 Service Unavailable", "SlowDown")
            case "none":
                return refuse(start, "501 Not Implemented", "NotImplemented")
            case "cut":
                environ["wsgi.input"].read(2**16)
                return cut(environ)
            case "half":
                return self._half(environ, start)
        if self._skewed(environ):
            return refuse(start, "403 Forbidden", "RequestTimeTooSkewed")
        return (
            self._dated(environ, start) if environ["QUERY_STRING"].startswith("uploads") else self.app(environ, start)
        )

    def _dated(self, environ: dict[str, Any], start: Any) -> list[bytes]:
        """Have uploads begin now, or as long ago as `age`; by moto all began in 2010."""
        began = (datetime.now(UTC) - self.age).strftime("%Y-%m-%dT%H:%M:%S.000Z").encode()
        heads: list[Any] = []
        answer = b"".join(self.app(environ, lambda *head: heads.append(head)))
        start(*heads[0])
        return [re.sub(rb"(?<=<Initiated>)[^<]{24}(?=</Initiated>)", began, answer)]

    def _half(self, environ: dict[str, Any], start: Any) -> Iterator[bytes]:
        """Send the head of the answer, half of the bytes, and nothing more."""
        data = b"".join(self.app(environ, start))
        yield data[: len(data) // 2]
        yield from cut(environ)

    def _skewed(self, environ: dict[str, Any]) -> bool:
        """S3 refuses what was signed a quarter of an hour from its own time."""
        signed = environ.get("HTTP_X_AMZ_DATE")
        if signed is None:
            return False
        at = datetime.strptime(signed, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        return abs(datetime.now(UTC) + self.ahead - at) > timedelta(minutes=15)

    def client(self) -> Any:
        """The bucket's owner, who does not use modelyard."""
        if self.owner is None:
            named = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
            self.owner = Session().create_client("s3", endpoint_url=self.url, **named)
        return self.owner


def refuse(start: Any, status: str, code: str) -> list[bytes]:
    body = f"<Error><Code>{code}</Code><AWSAccessKeyId>{KEY}</AWSAccessKeyId></Error>".encode()
    start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]


def cut(environ: dict[str, Any]) -> Iterable[bytes]:
    """End the connection, as a network does."""
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    raise ConnectionAbortedError


@pytest.fixture(scope="session")
def _running() -> Iterator[Server]:
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    server = Server(DomainDispatcherApplication(create_backend_app))
    listening = make_server("127.0.0.1", 0, server, threaded=True)
    listening.RequestHandlerClass.log = lambda *_, **__: None
    server.url = f"http://127.0.0.1:{listening.server_port}"
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    yield server
    listening.shutdown()
    listening.server_close()
    thread.join()


@pytest.fixture
def server(_running: Server) -> Iterator[Server]:
    yield _running
    _running.fault, _running.ahead, _running.age = (lambda environ: None), timedelta(), timedelta()
    _running.asked.clear()


@pytest.fixture
def bucket(server: Server) -> str:
    """A new bucket."""
    name = f"yard-{next(NUMBERS)}"
    server.client().create_bucket(Bucket=name)
    return name


@pytest.fixture
def address(server: Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a bucket whose credentials are in the environment."""
    given = {
        "AWS_ENDPOINT_URL": server.url,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "TMPDIR": str(tmp_path),
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return f"s3://{bucket}/yard"


def uploads(server: Server, bucket: str) -> list[str]:
    """The keys of the uploads that are not finished."""
    return [one["Key"] for one in server.client().list_multipart_uploads(Bucket=bucket).get("Uploads", ())]


def store_of(server: Server, bucket: str, **options: Any) -> S3Store:
    given = {
        "endpoint": server.url,
        "access_key_id": KEY,
        "secret_access_key": SECRET,
        "region": "us-east-1",
        "client_options": {"allow_http": True},
        "retry_config": RETRIES,
        "prefix": "a/prefix",
    }
    return S3Store(bucket, **{**given, **options})


def artifacts_in(server: Server, bucket: str, tmp_path: Path, **options: Any) -> ObjectArtifacts:
    return ObjectArtifacts(store_of(server, bucket, **options), tmp_path / "cache", part=5 * 2**20)
