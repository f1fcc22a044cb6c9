"""What a request brings whose entity is deleted while its body comes is not stored, whoever sends it."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from forms import HEADER, form
from modelyard import Platform, open_platform
from modelyard.domain.evaluation.objects import ObjectVersion
from modelyard.domain.identity import Principal, Scope
from modelyard.domain.schema import RECORDS
from modelyard.errors import Unauthenticated
from modelyard.http.endpoint import Endpoint
from modelyard.http.interface import Interface
from modelyard.http.message import Request
from modelyard.testing import ManualClock

PLACE = {"project_id": "acme/x"}
ROW = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
CALL = {**PLACE, "id": "c1", "trace_id": "t1", "op_name": "op", "started_at": "2026-03-01T00:00:00Z", "inputs": {}}
BODIES: dict[str, Any] = {
    "/v1/files": form({"purpose": "user_data"}, b"my name is Ada"),
    "/v1/preview/datasets": json.dumps(ROW).encode() + b"\n",
    "/v1/responses": {"model": "echo", "input": "hello there"},
    "/v1/chat/completions": {"model": "echo", "messages": ROW["messages"][:1], "store": True},
    "/call/start": {"start": {**CALL, "attributes": {}}},
    "/obj/create": {"obj": {**PLACE, "object_id": "thing", "val": {"a": 1}}},
    "/table/create": {"table": {**PLACE, "rows": [{"a": 1}]}},
    "/feedback/create": {**PLACE, "feedback_type": "note", "weave_ref": "weave:///acme/x/call/c", "payload": {}},
    "/v2/acme/x/scorers": {"name": "s", "op_source_code": "def score(output): ..."},
}
MEDIA = {"/v1/files": HEADER, "/v1/preview/datasets": ("content-type", "application/jsonl")}


class Outside:
    """Another system that knows who calls, by no key of the platform."""

    blocking, longest = False, 64

    def __init__(self) -> None:
        self.known = True

    def authenticate(self, secret: str) -> Principal:
        if not self.known:
            raise Unauthenticated("unknown")
        return Principal("outside", "acme", Scope("acme"))


def stored(platform: Platform) -> int:
    texts = [record.cls for record in RECORDS if record.texts and "by_entity" in record.indexes]
    texts += [record.cls for record in RECORDS if record.table == "datasets"]
    read = platform._runtime.store.read
    return sum(
        read(lambda snapshot, cls=cls: snapshot.count(cls, "by_entity", "acme")) for cls in {*texts, ObjectVersion}
    )


def send(endpoint: Endpoint, path: str, secret: str, between: Callable[[], object], asynchronous: bool) -> int:
    given = BODIES[path]
    raw = given if isinstance(given, bytes) else json.dumps(given).encode()
    basic = not path.startswith("/v1/")
    shown = "Basic " + base64.b64encode(f"api:{secret}".encode()).decode() if basic else f"Bearer {secret}"
    headers = [
        ("authorization", shown),
        ("openai-project", "acme/x"),
        MEDIA.get(path, ("content-type", "application/json")),
    ]

    def pieces() -> Iterator[bytes]:
        yield raw[:10]
        between()
        yield raw[10:]

    async def apieces() -> AsyncIterator[bytes]:
        for piece in pieces():
            yield piece

    query = "name=d&project=x&entity=acme" if path == "/v1/preview/datasets" else ""
    if asynchronous:
        return asyncio.run(endpoint.ahandle(Request("POST", path, query, headers, apieces()))).status
    return endpoint.handle(Request("POST", path, query, headers, pieces())).status


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("own", [False, True], ids=["host", "outside"])
@pytest.mark.parametrize("path", BODIES)
def test_what_comes_while_its_entity_is_deleted_is_not_stored(path: str, own: bool, asynchronous: bool) -> None:
    clock = ManualClock()
    with open_platform(clock=clock) as platform:
        secret = "secret" if own else platform.keys.create("ops", host=True).secret
        endpoint = Endpoint(platform, tuple(Interface), authenticator=Outside() if own else None)

        def delete() -> None:
            clock.advance(0.1)
            platform.delete_entity("acme")
            clock.advance(0.1)

        status = send(endpoint, path, secret, delete, asynchronous)
        assert stored(platform) == 0
        assert status == (200 if path in ("/v1/responses", "/v1/chat/completions") else 401)
        assert send(endpoint, path, secret, lambda: None, asynchronous) in (200, 201)
        assert stored(platform) > 0


def test_a_caller_without_a_key_is_asked_again_after_a_long_body() -> None:
    clock, outside = ManualClock(), Outside()
    with open_platform(clock=clock) as platform:
        endpoint = Endpoint(platform, authenticator=outside)

        def revoke() -> None:
            clock.advance(2)
            outside.known = False

        assert send(endpoint, "/v1/files", "secret", revoke, False) == 401
        assert stored(platform) == 0
