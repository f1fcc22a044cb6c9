"""What an index finds for a condition is all for which the condition holds, and no more is read than that."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modelyard import Platform, open_platform
from modelyard.parts.traces import call_query as searching
from modelyard.parts.traces.call_filter import CallFilter
from modelyard.parts.traces.call_query import CallOrder, CallQuery
from modelyard.parts.traces.http.documents import condition_of, with_feedback
from modelyard.parts.traces.http.queries import call_query
from modelyard.parts.traces.http.schemas import CallsFilter, CallsQueryRequest, SortBy
from modelyard.parts.traces.records import CallEnd, TracedCall

START = datetime(2026, 1, 1, tzinfo=UTC)
CALLS = 24
STATUS, TIME = "summary.weave.status", "started_at"


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    """A project with calls of each outcome, a second apart; every fifth has feedback."""
    with open_platform() as platform:
        calls = platform.compat.traces.calls
        for number in range(CALLS):
            start = START + timedelta(seconds=number)
            parent = f"c{number - 1}" if number % 4 == 3 else None
            calls.record([TracedCall("", "", f"c{number}", f"t{number % 3}", f"op{number % 2}", start, parent)])
            if number % 3:
                error = "ValueError" if number % 3 == 2 else None
                calls.record([CallEnd(f"c{number}", start + timedelta(seconds=1), number, error)])
            if number % 5 == 0:
                platform.compat.traces.feedback.add(calls.get(f"c{number}").ref, "rating", {"stars": number})
        yield platform


def field(path: str) -> dict[str, str]:
    return {"$getField": path}


def literal(value: Any) -> dict[str, Any]:
    return {"$literal": value}


times = st.integers(-1, CALLS).map(lambda seconds: (START + timedelta(seconds=seconds)).timestamp())
orders = st.sampled_from(["$gt", "$gte", "$lt", "$lte", "$eq"])
atoms = st.one_of(
    st.builds(lambda order, time: {order: [field(TIME), literal(time)]}, orders, times),
    st.builds(lambda order, time: {order: [literal(time), field(TIME)]}, orders, times),
    st.sampled_from(["success", "error", "running", "other"]).map(
        lambda status: {"$eq": [field(STATUS), literal(status)]}
    ),
    st.sampled_from([0, 10, 99]).map(
        lambda stars: {"$gte": [field("feedback.[rating].payload.stars"), literal(stars)]}
    ),
    st.just({"$eq": [field("feedback.[rating].payload.stars"), literal("")]}),
    st.just({"$eq": [field("op_name"), literal("op1")]}),
    st.just({"$gt": [field("ended_at"), field(TIME)]}),
)
conditions = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.builds(lambda several: {"$and": several}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda several: {"$or": several}, st.lists(inner, min_size=1, max_size=3)),
        inner.map(lambda one: {"$not": [one]}),
    ),
    max_leaves=5,
)
filters = st.sampled_from(
    [None, CallsFilter(op_names=("op1",)), CallsFilter(trace_roots_only=True), CallsFilter(trace_ids=("t0", "t2"))]
)


@pytest.mark.slow
@given(conditions, filters, st.booleans(), st.integers(0, 5), st.integers(1, CALLS))
@settings(max_examples=150, deadline=None)
def test_what_an_index_finds_is_what_the_condition_says(
    platform: Platform, condition: Any, only: CallsFilter | None, descending: bool, offset: int, limit: int
) -> None:
    traces = platform.compat.traces
    sort = (SortBy("started_at", "desc" if descending else "asc"),)
    body = CallsQueryRequest("local/default", filter=only, query={"$expr": condition}, sort_by=sort)
    query = call_query(body, traces.feedback)
    where, _ = condition_of(body.query)
    plain = CallFilter(
        op_names=(only and only.op_names) or (),
        trace_ids=(only and only.trace_ids) or (),
        roots_only=bool(only and only.trace_roots_only),
    )
    wanted = [
        one.id
        for one in traces.calls.list()
        if plain.keeps(one) and where.of(with_feedback(one, traces.feedback)) is True  # type: ignore[arg-type]
    ]
    wanted = wanted[::-1] if descending else wanted
    assert [one.id for one in traces.calls.query(query)] == wanted
    assert traces.calls.count(query) == len(wanted)
    part = call_query(CallsQueryRequest(**{**_given(body), "offset": offset, "limit": limit}), traces.feedback)
    for _ in range(2):  # the second time from a place that is known
        assert [one.id for one in traces.calls.query(part)] == wanted[offset : offset + limit]


def _given(body: CallsQueryRequest) -> dict[str, Any]:
    return {name: getattr(body, name) for name in ("project_id", "filter", "query", "sort_by")}


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"$eq": [field(STATUS), literal("error")]}, 8),
        ({"$gt": [field(TIME), literal((START + timedelta(seconds=CALLS - 3)).timestamp())]}, 3),
        ({"$not": [{"$gt": [field(TIME), literal(START.timestamp() + 2)]}]}, 3),
        ({"$gt": [field("feedback.[rating].payload.stars"), literal(7)]}, 5),
    ],
)
def test_no_more_is_read_than_an_index_finds(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, condition: Any, expected: int
) -> None:
    body = CallsQueryRequest("local/default", query={"$expr": condition})
    query, checked = call_query(body, platform.compat.traces.feedback), list[str]()
    monkeypatch.setattr(searching, "BATCH", 2)
    keeps = CallFilter.keeps
    monkeypatch.setattr(CallFilter, "keeps", lambda self, call: bool(checked.append(call.id)) or keeps(self, call))
    assert [*platform.compat.traces.calls.query(query)]
    assert len(checked) <= expected + 3


def test_a_part_far_down_reads_places_only(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    checked, keeps = list[str](), CallFilter.keeps
    monkeypatch.setattr(CallFilter, "keeps", lambda self, call: bool(checked.append(call.id)) or keeps(self, call))
    calls = platform.compat.traces.calls
    for only, step in ((CallFilter(), 1), (CallFilter(op_names=("op0",)), 2), (CallFilter(outcomes=("error",)), 3)):
        numbers = [*range(2 if step == 3 else 0, CALLS, step)]
        checked.clear()
        assert [one.id for one in calls.query(CallQuery(only, offset=5, limit=1))] == [f"c{numbers[5]}"]
        assert calls.count(CallQuery(only)) == len(numbers)
        assert len(checked) == 1
        assert [*calls.query(CallQuery(only, offset=99))] == []
    later = CallFilter(since=START + timedelta(seconds=4), until=START + timedelta(seconds=8))
    checked.clear()
    assert [one.id for one in calls.query(CallQuery(later, offset=2))] == ["c6", "c7"]
    newest = CallQuery(later, sort=(CallOrder("started_at", lambda one: one.started_at, True),), offset=3)
    assert [one.id for one in calls.query(newest)] == ["c4"]
    assert [*calls.query(CallQuery(later, offset=9))] == []


OP0 = "weave:///local/default/op/op0"


@pytest.mark.parametrize(
    "only",
    [
        CallFilter(op_names=("op0",), outcomes=("success",)),
        CallFilter(op_names=("op0",), roots_only=True),
        CallFilter(op_names=(f"{OP0}:v0",)),
        CallFilter(op_names=(f"{OP0}:*",)),
        CallFilter(parent_ids=("c2",), roots_only=True),
        CallFilter(trace_ids=("t1",), with_feedback=True),
        CallFilter(call_ids=("c0", "c1", "c5"), with_feedback=True),
        CallFilter(roots_only=True, since=START + timedelta(seconds=9), until=START + timedelta(seconds=20)),
        CallFilter(call_ids=("c1", "c5", "none"), outcomes=("error",)),
    ],
)
def test_what_an_index_does_not_cover_is_checked(platform: Platform, only: CallFilter) -> None:
    calls = platform.compat.traces.calls
    said = {one.ref for one in platform.compat.traces.feedback.list()}
    wanted = [one.id for one in calls.list() if only.keeps(one) and (not only.with_feedback or one.ref in said)]
    assert [one.id for one in calls.query(CallQuery(only))] == wanted
    assert calls.count(CallQuery(only)) == len(wanted)
    assert [one.id for one in calls.query(CallQuery(only, offset=1))] == wanted[1:]
