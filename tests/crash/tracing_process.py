"""A server that is killed while a client of traces writes: python tracing_process.py PATH KEY [MOMENT].

It says which of `REQUESTS` it has acknowledged, and dies at the moment (`moments.py`).
"""

import sys
from pathlib import Path
from typing import Any

import attrs
from moments import Moments, WatchedArtifacts, WatchedStore, tell

from modelyard import Platform, open_platform
from modelyard.artifacts.folder import FolderArtifacts
from modelyard.asgi import Endpoint
from modelyard.domain.schema import RECORDS
from modelyard.platform.artifacts import artifacts_folder
from modelyard.stores.sqlite import SqliteStore

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from forms import HEADER, form
from http_client import Client

PLACE = {"project_id": "acme/traced"}
DIGESTS = "digests of the table"
"""Stands for the digests of the rows of the table that was created before."""


def _whole(number: int) -> dict[str, Any]:
    time = f"2026-01-01T00:00:{number % 60:02d}.{number:06d}Z"
    parent = {"parent_id": f"c{number - number % 4}"} if number % 4 else {}
    begun = {**PLACE, "id": f"c{number}", "trace_id": f"t{number // 4}", "op_name": "answer", "started_at": time}
    return {**begun, **parent, "ended_at": time, "inputs": {"n": number}, "output": number, "attributes": {}}


def _upserts(first: int, count: int) -> list[dict[str, Any]]:
    """Outcomes before their starts, and after them."""
    items: list[dict[str, Any]] = []
    for number in range(first, first + count):
        one = _whole(number)
        ended = {name: one.pop(name) for name in ("ended_at", "output")}
        both = [
            {"mode": "start", "req": {"start": one}},
            {"mode": "end", "req": {"end": {**PLACE, "id": one["id"], "summary": {}, **ended}}},
        ]
        items += both[:: -1 if number % 2 else 1]
    return items


def _span(number: int) -> dict[str, Any]:
    times = {"startTimeUnixNano": str(10**18 + number), "endTimeUnixNano": str(10**18 + 5000 + number)}
    return {"traceId": f"{number // 10 + 1:032x}", "spanId": f"{number + 1:016x}", "name": "chat", **times}


REQUESTS: tuple[tuple[str, Any], ...] = (
    ("/v2/acme/traced/calls/complete", {"batch": [{**_whole(number), "summary": {}} for number in range(250)]}),
    ("/call/upsert_batch", {"batch": _upserts(300, 120)}),
    ("/file/create", b"what a file holds\n" * 10_000),
    ("/table/create", {"table": {**PLACE, "rows": [{"q": number} for number in range(450)]}}),
    ("/table/create_from_digests", {**PLACE, "row_digests": DIGESTS}),
    ("/obj/create", {"obj": {**PLACE, "object_id": "prompt", "val": {"text": "Be short."}}}),
    (
        "/feedback/batch/create",
        {
            "batch": [
                {
                    **PLACE,
                    "id": f"said-{number}",
                    "weave_ref": f"weave:///acme/traced/call/c{number}",
                    "feedback_type": "rating",
                    "payload": {"stars": number},
                }
                for number in range(30)
            ]
        },
    ),
    ("/v1/traces", {"resourceSpans": [{"scopeSpans": [{"spans": [_span(number) for number in range(150)]}]}]}),
    ("/call/update", {**PLACE, "call_id": "c7", "display_name": "seven"}),
    ("/calls/delete", {**PLACE, "call_ids": ["c20", "c301"]}),
)
"""What the client sends, in this order, and again until it is acknowledged."""


@attrs.frozen
class TracingClient:
    """A client of traces with a key of acme, in the process of its server."""

    client: Client

    @classmethod
    def of(cls, platform: Platform, key: str) -> "TracingClient":
        """Return a client of a platform in this process."""
        return cls(Client(platform, Endpoint(platform), key, description=None))  # type: ignore[arg-type]

    def send(self, path: str, body: Any) -> Any:
        """Send one request, which must be acknowledged."""
        if isinstance(body, bytes):
            sent = form({**PLACE}, body, "a.txt")
            answer = self.client.send("POST", path, raw=sent, headers=[HEADER], auth="Basic", check=False)
        else:
            if DIGESTS in body.values():
                table = self.send(*REQUESTS[3])
                body = {**body, "row_digests": table["row_digests"]}
            headers = [("compat-project", "acme/traced")] if path == "/v1/traces" else []
            answer = self.client.send("POST", path, body, headers=headers, auth="Basic", check=False)
        assert answer.status == 200, (path, answer.raw)
        return answer.json


def main(path: str, key: str, moment: str = "") -> None:
    moments = Moments({moment: "die"}, reported=True)
    store: Any = WatchedStore(SqliteStore(path, RECORDS), moments)
    artifacts: Any = WatchedArtifacts(FolderArtifacts(artifacts_folder(path)), moments)
    with open_platform(store=store, artifacts=artifacts) as platform:
        client = TracingClient.of(platform, key)
        for number, request in enumerate(REQUESTS):
            client.send(*request)
            tell("acknowledged", number)


if __name__ == "__main__":
    main(*sys.argv[1:])
