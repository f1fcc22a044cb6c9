"""Bodies of any size: spooled into the artifact store as they come, off the event loop, and never half kept."""

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from modelyard.compose import open_platform
from modelyard.http import endpoint as endpoint_module
from modelyard.http.endpoint import Endpoint
from modelyard.http.interface import Auth, Interface
from modelyard.http.message import Request, Response, json_response
from modelyard.http.route import Body, Route, RouteCall
from modelyard.platform.runtime import Settings

PATH = "/v1/data"
threads: list[int] = []


def keep(call: RouteCall) -> Response:
    """Say what came, and take it away."""
    threads.append(threading.get_ident())
    read = call.file.read()
    call.file.seek(0)
    again = b"".join(call.file)
    return json_response({"size": len(read), "digest": hashlib.sha256(read).hexdigest(), "same": again == read})


@pytest.fixture(autouse=True)
def data_route(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    own = Route("POST", PATH, Interface.TRAINING, Auth.BEARER, keep, body=Body.DATA)
    monkeypatch.setattr(endpoint_module, "FIRST", (*endpoint_module.FIRST, own))
    endpoint_module.route_table.cache_clear()
    yield
    endpoint_module.route_table.cache_clear()


@pytest.fixture(params=["memory", "folder"])
def platform(request: pytest.FixtureRequest, yard_file: Path) -> Iterator[Any]:
    path = yard_file if request.param == "folder" else None
    with open_platform(path, settings=Settings(max_data_body=1_000_000), durability="process") as platform:
        yield platform


def send(
    platform: Any, asynchronous: bool, chunks: list[bytes], headers: list[tuple[str, str]] | None = None
) -> Response:
    endpoint, key = Endpoint(platform), platform.keys.create("acme").secret
    sent = [("authorization", f"Bearer {key}"), *(headers or [])]
    if not asynchronous:
        return endpoint.handle(Request("POST", PATH, "", sent, iter(chunks)))

    async def coming() -> AsyncIterator[bytes]:
        for chunk in chunks:
            await asyncio.sleep(0)
            yield chunk

    return asyncio.run(endpoint.ahandle(Request("POST", PATH, "", sent, coming())))


@pytest.mark.parametrize("number", [1, 200, 262, 263, 900])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_data_is_spooled_and_handed_over_whole(platform: Any, asynchronous: bool, number: int) -> None:
    chunks = [bytes([at % 251]) * 1000 for at in range(number)]
    threads.clear()
    response = send(platform, asynchronous, chunks)
    digest = hashlib.sha256(b"".join(chunks)).hexdigest()
    assert response.body == json_response({"size": number * 1000, "digest": digest, "same": True}).body
    assert list(platform._runtime.artifacts.names()) == []
    assert (threads[0] != threading.get_ident()) is asynchronous


@pytest.mark.parametrize("asynchronous", [False, True])
def test_data_beyond_the_cap_is_refused_and_nothing_remains(platform: Any, asynchronous: bool) -> None:
    assert send(platform, asynchronous, [b"x" * 100_000] * 11).status == 413
    assert list(platform._runtime.artifacts.names()) == []


@pytest.mark.parametrize(
    ("media", "status"), [("application/jsonl", 200), ("application/octet-stream", 200), ("text/html", 415)]
)
def test_data_may_be_json_lines_or_bytes(platform: Any, media: str, status: int) -> None:
    assert send(platform, False, [b"x"], [("content-type", media)]).status == status


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_body_that_breaks_off_leaves_nothing(platform: Any, asynchronous: bool) -> None:
    class Gone(Exception):
        pass

    def breaking() -> Any:
        yield b"x"
        raise Gone

    async def abreaking() -> Any:
        yield b"x"
        raise Gone

    endpoint, key = Endpoint(platform), platform.keys.create("acme").secret
    sent = [("authorization", f"Bearer {key}")]
    if asynchronous:
        response = asyncio.run(endpoint.ahandle(Request("POST", PATH, "", sent, abreaking())))
    else:
        response = endpoint.handle(Request("POST", PATH, "", sent, breaking()))
    assert response.status == 500
    assert list(platform._runtime.artifacts.names()) == []
