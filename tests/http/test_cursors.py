"""Every listing and every form of a place to continue at: what no listing has given is refused, and nothing breaks."""

import json
from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import quote

import pytest

from modelyard import Platform, open_platform
from modelyard.http.endpoint import Endpoint
from modelyard.http.interface import Interface
from modelyard.http.message import Request

CURSORS = (
    "x",
    "x" * 1001,
    "x" * 5000,
    "\u20ac" * 400,
    "\U0001f9ea" * 300,
    "\0",
    "0",
    "-1",
    "9" * 40,
    "a/b",
    "null",
    "[]",
    "%",
)
NAMES = ("after", "before", "cursor", "page_token", "pageToken", "after_id", "before_id", "starting_after")
IDS = {"kind": "job", "project": "default", "entity": "acme"}


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with open_platform() as platform:
        _fill(platform)
        yield Endpoint(platform, list(Interface))


def _fill(platform: Platform) -> None:
    rows = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}]
    model = platform.models.create("m", base_model="tabular-mini", entity="acme")
    platform.training.sft(model, rows).wait()
    platform.evaluations.run("e", "echo", [{"prompt": "x", "expected": "x"}], "exact_match", entity="acme")


def asked(endpoint: Endpoint, path: str, query: str, key: str) -> tuple[int, Any]:
    headers = [(b"authorization", f"Bearer {key}".encode()), (b"x-api-key", key.encode())]
    response = endpoint.handle(Request("GET", path, query, headers, iter(())))
    body = response.body
    return response.status, body if isinstance(body, bytes) else b"".join(cast("Iterator[bytes]", body))


@pytest.mark.slow
def test_no_cursor_breaks_a_listing(endpoint: Endpoint) -> None:
    platform = endpoint._served.platform
    keys = [platform.keys.create("acme").secret, platform.keys.create("acme", host=True).secret]
    (model,), (job,), (run,) = platform.models.list(), platform.training.list(), platform.evaluations.runs.list_all()
    document = json.loads(asked(endpoint, "/openapi.json", "", keys[0])[1])
    tried, broken = 0, []
    for path, operations in document["paths"].items():
        named = [one["name"] for one in operations.get("get", {}).get("parameters", ()) if one["in"] == "query"]
        for name in set(NAMES) & set(named):
            for known in (model.id, job.id, run.id):
                filled = "/".join(IDS.get(part[1:-1], known) if part[:1] == "{" else part for part in path.split("/"))
                for cursor in CURSORS:
                    for key in keys:
                        tried += 1
                        status, body = asked(endpoint, filled, f"{name}={quote(cursor)}", key)
                        if status >= 500:
                            broken.append((filled, name, cursor[:20], status, body[:200]))
    assert tried > 500
    assert broken == []
