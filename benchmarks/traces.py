"""Pages of traced calls at growing sizes, as JSON: python benchmarks/traces.py [SIZE ...].

Each size is a store of so many calls in traces of ten, one in a hundred with an error, one in a thousand with feedback.
A page has 100 calls and is asked for over HTTP, as the trace client does: milliseconds of CPU time, the least of three.
`through` pages through all calls by 1,000: microseconds a call of its first and its last tenth.
"""

import json
import resource
import sys
import tempfile
import time
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from modelyard import Platform, open_platform
from modelyard.asgi import Endpoint, Request
from modelyard.domain.identity import host
from modelyard.parts.dashboard.app import Dashboard
from modelyard.parts.traces.records import CallEnd, Feedback, TracedCall
from modelyard.protocols import Tx

SIZES = (10_000, 100_000, 1_000_000)
START = datetime(2026, 1, 1, tzinfo=UTC)
PLACE = "local", "default"
ASKED = {"model": "support", "messages": [{"role": "user", "content": "Where is my parcel? " * 8}]}
BATCH = 5_000


def call(number: int) -> TracedCall:
    """Return one call of a trace of ten."""
    trace, within = divmod(number, 10)
    began = START + timedelta(milliseconds=number * 7)
    parent = f"call-{trace * 10:07d}" if within else None
    op = ("answer", "search", "rank", "rare")[0 if not within else 1 + number % 2 if number % 5_000 != 1 else 3]
    begun = TracedCall(*PLACE, f"call-{number:07d}", f"trace-{trace:07d}", op, began, parent, op, inputs=ASKED)
    error = "ValueError: no parcel" if number % 100 == 99 else None
    answer = {"choices": [{"message": {"role": "assistant", "content": "It arrives on Friday. " * 8}}], "n": number}
    usage = {"usage": {"support": {"requests": 1, "prompt_tokens": 40, "completion_tokens": 30}}}
    return begun.with_end(CallEnd(begun.id, began + timedelta(milliseconds=number % 900), answer, error, usage))


def fill(platform: Platform, size: int) -> None:
    """Record the calls through the use case, and the feedback."""
    for begin in range(0, size, BATCH):
        platform.compat.traces.calls.record([call(number) for number in range(begin, min(begin + BATCH, size))])
    given = (number for number in range(0, size, 1000))

    def step(tx: Tx) -> None:
        for number in given:
            one = call(number)
            tx.add(Feedback(*PLACE, f"said-{number}", one.ref, "thumbs", one.started_at, {"up": number % 3 == 0}))

    platform._runtime.store.transact(step)


def queries(size: int) -> dict[str, dict[str, Any]]:
    """Return a query of each kind."""

    def where(operator: str, field: str, value: object) -> dict[str, Any]:
        return {"query": {"$expr": {operator: [{"$getField": field}, {"$literal": value}]}}}

    newest: dict[str, Any] = {"sort_by": [{"field": "started_at", "direction": "desc"}]}
    middle = call(size // 2)
    late = call(size - 50).started_at.timestamp()
    return {
        "first page": {},
        "newest page": newest,
        "in the middle, place not known": {"offset": size // 2},
        "at the end, place not known": {"offset": size - 100},
        "by an op": {"filter": {"op_names": ["search"]}} | newest,
        "by a rare op": {"filter": {"op_names": ["rare"]}} | newest,
        "roots": {"filter": {"trace_roots_only": True}} | newest,
        "by a trace": {"filter": {"trace_ids": [middle.trace_id]}},
        "by a parent": {"filter": {"parent_ids": [middle.parent_id or middle.id]}},
        "by an id": {"filter": {"call_ids": [middle.id]}},
        "since a time": where("$gt", "started_at", late),
        "between in the middle": where("$gte", "started_at", middle.started_at.timestamp()),
        "with an error": where("$eq", "summary.weave.status", "error") | newest,
        "an op with an error": where("$eq", "summary.weave.status", "error") | {"filter": {"op_names": ["rank"]}},
        "with feedback": where("$eq", "feedback.[thumbs].payload.up", True) | newest,
    }


def posted(endpoint: Endpoint, headers: list[tuple[str, str]], path: str, body: dict[str, Any]) -> list[bytes]:
    """Return the lines of an answer."""
    raw = json.dumps({"project_id": "/".join(PLACE), **body}).encode()
    answer = endpoint.handle(Request("POST", path, "", headers, iter((raw,))))
    content = answer.body if isinstance(answer.body, bytes) else b"".join(answer.body)  # type: ignore[arg-type]
    assert answer.status == 200, content
    return content.splitlines()


def cpu(action: Any, times: int = 3) -> float:
    """Return the least CPU time of some calls, in milliseconds."""
    spent = []
    for _ in range(times):
        began = time.process_time()
        action()
        spent.append((time.process_time() - began) * 1000)
    return round(min(spent), 2)


def through(ask: Any, size: int) -> tuple[float, float]:
    """Page through all calls; return the microseconds a call of the first and the last tenth."""
    spent = []
    for offset in range(0, size, 1000):
        began = time.process_time()
        assert len(ask("/calls/stream_query", {"limit": 1000, "offset": offset})) == 1000
        spent.append((time.process_time() - began) * 1000)
    tenth = max(1, len(spent) // 10)
    return tuple(round(sum(part) / len(part), 1) for part in (spent[:tenth], spent[-tenth:]))  # type: ignore[return-value]


def dashboard_pages(size: int) -> dict[str, str]:
    """Return the addresses of pages of traces."""
    place, moment = quote("/".join(PLACE), safe=""), call(size // 2).started_at.strftime("%Y-%m-%dT%H:%M:%S")
    return {
        "dashboard": "traces",
        "dashboard, a project": f"traces?project={place}",
        "dashboard, by an op": f"traces?project={place}&op=search",
        "dashboard, with an error": f"traces?project={place}&status=error",
        "dashboard, an op with an error": f"traces?project={place}&op=rare&status=error",
        "dashboard, before a time": f"traces?project={place}&until={moment}",
        "dashboard, one call": f"traces/{PLACE[0]}/{PLACE[1]}/{call(size // 20 * 10).id}",
    }


def measured(size: int) -> dict[str, Any]:
    """Return the figures of one size."""
    with tempfile.TemporaryDirectory() as folder, open_platform(Path(folder) / "yard.db") as platform:
        began = time.process_time()
        fill(platform, size)
        figures: dict[str, Any] = {"record, us a call": round((time.process_time() - began) / size * 1e6, 1)}
        figures["bytes a call"] = (Path(folder) / "yard.db").stat().st_size // size
        endpoint, key = Endpoint(platform), platform.keys.create("local").secret
        ask = partial(posted, endpoint, [("authorization", f"Basic {b64encode(f'api:{key}'.encode()).decode()}")])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for name, query in queries(size).items():
            body = {"limit": 100, **query}

            def page(body: dict[str, Any] = body) -> None:
                platform._runtime.cache.slots.clear()
                ask("/calls/stream_query", body)

            figures[name] = cpu(page)
        figures["count"] = cpu(lambda: ask("/calls/query_stats", {}))
        figures["count of an op"] = cpu(lambda: ask("/calls/query_stats", {"filter": {"op_names": ["search"]}}))
        figures["through"] = through(ask, size)
        dashboard = Dashboard(platform, reader=host("local"))
        for name, address in dashboard_pages(size).items():
            figures[name] = cpu(partial(show, dashboard, address))
        figures["MiB more while paging"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    return figures


def show(dashboard: Dashboard, address: str) -> None:
    """Ask for a page of the dashboard."""
    path, _, query = address.partition("?")
    answer = dashboard.handle(Request("GET", f"/dashboard/{path}", query, [("host", "127.0.0.1")], iter([b""])))
    assert answer.status == 200, (address, answer.body)


def main() -> None:
    sizes = [int(text) for text in sys.argv[1:]] or list(SIZES)
    print(json.dumps({f"{size:,} calls": measured(size) for size in sizes}, indent=2))


if __name__ == "__main__":
    main()
