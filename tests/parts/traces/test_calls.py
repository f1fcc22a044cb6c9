"""Traced calls: what is recorded is read back, found, followed to what answered, and gone with all that is on it."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modelyard import Platform, open_platform
from modelyard.domain.canonical import canonical_json
from modelyard.domain.evaluation.filters import field
from modelyard.errors import Conflict, Forbidden, InvalidInput, NotFound, ObjectDeleted
from modelyard.parts.traces import call_query
from modelyard.parts.traces.call_filter import CallFilter
from modelyard.parts.traces.call_query import CallOrder, CallQuery
from modelyard.parts.traces.records import CallEnd, Feedback, TracedCall
from modelyard.testing import ManualClock

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture(scope="module")
def platform(clock: ManualClock) -> Iterator[Platform]:
    with open_platform(clock=clock) as platform:
        yield platform


@pytest.fixture(autouse=True)
def nothing_left(platform: Platform) -> Iterator[None]:
    yield
    platform.compat.traces.calls.delete([call.id for call in platform.compat.traces.calls.list()])
    assert list(platform.compat.traces.feedback.list()) == []


def call(number: int, **more: object) -> TracedCall:
    """A call that began so many seconds after the others."""
    values = {"trace_id": "t", "op_name": "answer", **more}
    return TracedCall("", "", f"c{number}", started_at=START + timedelta(seconds=number), **values)  # type: ignore[arg-type]


def ids(found: Iterator[TracedCall]) -> list[str]:
    return [one.id for one in found]


def test_a_call_is_what_its_start_and_its_end_were(platform: Platform, clock: ManualClock) -> None:
    calls = platform.compat.traces.calls
    outer = calls.start("answer", {"text": "hi"}, attributes={"a": [1]})
    inner = calls.start("look up", parent=outer)
    assert (inner.trace_id, inner.parent_id, outer.status) == (outer.id, outer.id, "running")
    clock.advance(2)
    ended = calls.end(outer.id, {"text": "hello"}, summary={"usage": {}})
    assert (ended.status, ended.latency, ended.output["value"]) == ("success", 2.0, {"text": "hello"})
    assert calls.end(inner.id, exception="ValueError").status == "error"
    assert [one.id for one in calls.list()] == [outer.id, inner.id]
    assert calls.list().page(1, after=outer.id).items == (calls.get(inner.id),)
    assert calls.rename(outer.id, "greeting").display_name == "greeting"
    with pytest.raises(NotFound):
        calls.end("unknown")


def item(number: int, seconds: int, text: str, kind: str) -> TracedCall | CallEnd:
    """The start of one of a few calls, its outcome, or both."""
    ended = CallEnd(f"c{number}", START + timedelta(seconds=seconds), text, "ValueError" if kind == "error" else None)
    begun = call(number, inputs={"text": text}, display_name=text)
    return begun if kind == "start" else begun.with_end(ended) if kind == "whole" else ended


several = st.lists(
    st.builds(
        item,
        st.integers(0, 3),
        st.integers(0, 9),
        st.sampled_from(["", "a", "b"]),
        st.sampled_from(["start", "end", "error", "whole"]),
    ),
    max_size=8,
)


@settings(max_examples=30, deadline=None, database=None)
@given(several, several)
def test_a_batch_is_what_its_items_are_one_by_one(
    platform: Platform, before: list[TracedCall | CallEnd], batch: list[TracedCall | CallEnd]
) -> None:
    def calls_after(project: str, *batches: list[TracedCall | CallEnd]) -> list[TracedCall]:
        for some in batches:
            platform.compat.traces.calls.record(some, project=project)
        found = [*platform.compat.traces.calls.list(project=project)]
        platform.compat.traces.calls.delete([one.id for one in found], project=project)
        return [attrs.evolve(one, project="") for one in found]

    assert calls_after("together", before, batch) == calls_after("apart", before, *([one] for one in batch))


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 1, 0), (0, 1, 1), (1, 0, 1, 0)])
def test_starts_and_ends_may_come_again_and_in_any_order(platform: Platform, order: tuple[int, ...]) -> None:
    start = call(0, inputs={"a": 1}, display_name="named")
    end = CallEnd("c0", START + timedelta(seconds=3), "done", summary={"n": 1})
    for at in order:
        platform.compat.traces.calls.record([(start, end)[at]])
    found = platform.compat.traces.calls.get("c0")
    assert (found.op_name, found.inputs, found.output, found.summary) == (
        "answer",
        {"a": 1},
        {"value": "done"},
        {"n": 1},
    )
    assert (found.summary, found.latency, found.display_name) == ({"n": 1}, 3.0, "named")


def test_a_query_finds_by_index_and_by_condition(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_query, "BATCH", 3)
    calls, version = platform.compat.traces.calls, "weave:///local/default/op/look:v1"
    batch = [
        call(at, op_name=version if at % 2 else "answer", parent_id="c0" if at in (3, 4) else None, inputs={"n": -at})
        for at in range(8)
    ]
    calls.record([*reversed(batch), call(9, trace_id="other", output={"value": ["x", version]})])
    assert ids(calls.query()) == ["c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c9"]
    for query, expected in (
        (CallFilter(parent_ids=("c0",)), ["c3", "c4"]),
        (CallFilter(op_names=(version,)), ["c1", "c3", "c5", "c7"]),
        (CallFilter(op_names=("weave:///local/default/op/look:*",), parent_ids=("c0", "c1")), ["c3"]),
        (CallFilter(op_names=("weave:///local/default/op/look:v2",)), []),
        (CallFilter(trace_ids=("other", "none")), ["c9"]),
        (CallFilter(trace_ids=("other", "t"), roots_only=True, call_ids=("c9", "c3", "c2")), ["c2", "c9"]),
        (CallFilter(output_refs=(version,)), ["c9"]),
        (CallFilter(input_refs=(version,)), []),
    ):
        assert ids(calls.query(CallQuery(query))) == expected
        assert calls.count(CallQuery(query)) == len(expected)
    by_n = CallOrder("n", lambda one: one.inputs.get("n"))
    assert ids(calls.query(CallQuery(sort=(by_n,), limit=3))) == ["c9", "c7", "c6"]
    late = CallOrder("started_at", lambda one: one.started_at, descending=True)
    assert ids(calls.query(CallQuery(sort=(late,), limit=2, offset=1))) == ["c7", "c6"]
    condition = CallQuery(where=field("inputs.n") < -5, shown=lambda one: (attrs.evolve(one), ()))
    assert ids(calls.query(condition)) == ["c6", "c7"]
    assert (calls.count(), calls.count(CallQuery(limit=4, offset=7))) == (9, 2)
    monkeypatch.setattr(call_query, "MOST_SORTED", 3)
    with pytest.raises(InvalidInput, match="too many to sort"):
        calls.query(CallQuery(sort=(by_n,)))


def test_the_next_part_of_a_query_begins_where_the_last_one_ended(platform: Platform) -> None:
    calls = platform.compat.traces.calls
    calls.record([call(at) for at in range(10)])
    parts = [ids(calls.query(CallQuery(limit=4, offset=at, name="all"))) for at in (0, 4)]
    calls.record([call(-1)])  # what comes in between shifts nothing
    parts.append(ids(calls.query(CallQuery(limit=4, offset=8, name="all"))))
    assert [one for part in parts for one in part] == [f"c{at}" for at in range(10)]
    reads = []
    read = platform._runtime.store.read
    store = type("Counted", (), {"read": lambda self, step: reads.append(1) or read(step)})()
    search = call_query.CallSearch(
        attrs.evolve(platform._runtime, store=store), ("local", "default"), CallQuery(limit=4, offset=4, name="all")
    )
    assert ids(search.calls()) == ["c4", "c5", "c6", "c7"]
    assert len(reads) == 1


def test_a_place_is_forgotten_with_a_call_and_with_time(platform: Platform, clock: ManualClock) -> None:
    calls, query = platform.compat.traces.calls, CallQuery(limit=3, name="all")
    calls.record([call(at) for at in range(3)])
    assert ids(calls.query(query)) == ["c0", "c1", "c2"]
    calls.delete(["c0", "c1", "c2"])
    calls.record([call(at) for at in range(4, 9)])
    assert ids(calls.query(attrs.evolve(query, offset=3))) == ["c7", "c8"]
    assert ids(calls.query(query)) == ["c4", "c5", "c6"]
    calls.record([call(0)])
    assert ids(calls.query(attrs.evolve(query, offset=3))) == ["c7", "c8"]
    clock.advance(61)
    assert ids(calls.query(attrs.evolve(query, offset=3))) == ["c6", "c7", "c8"]


def test_a_deleted_call_takes_what_it_made_and_the_feedback_along(platform: Platform) -> None:
    calls, traces = platform.compat.traces.calls, platform.compat.traces
    calls.record(
        [call(0), call(1, parent_id="c0"), call(2, parent_id="c1"), call(3, parent_id="c4"), call(4, parent_id="c3")]
    )
    for one in calls.list():
        traces.feedback.add(one.ref, "thumbs", {"up": True})
    assert calls.delete(["c0", "unknown"]) == 3
    assert ids(calls.query()) == ["c3", "c4"]
    assert calls.delete(["c3"]) == 2  # each is said to have made the other


def test_feedback_is_on_a_reference_and_stored_once(platform: Platform) -> None:
    calls, feedback = platform.compat.traces.calls, platform.compat.traces.feedback
    one, other = calls.start("a"), calls.start("b")
    first = feedback.add(one.ref, "thumbs", {"up": True}, creator="ann")
    second = feedback.add(other.ref, "note", {"note": "long"})
    assert feedback.record([attrs.evolve(first, payload={"up": False})]) == [first]
    assert list(feedback.list()) == [first, second]
    assert list(feedback.list(ref=other.ref)) == [second]
    assert feedback.delete([first.id, "unknown"]) == 1
    with pytest.raises(InvalidInput):
        feedback.add("", "thumbs", project="default")


def test_a_traced_completion_leads_to_its_ledger_row_and_checkpoint(platform: Platform) -> None:
    model = platform.models.create("tuned", base_model="tabular-mini")
    answer = platform.chat.complete(model=model, messages="hi", max_tokens=3)
    calls = platform.compat.traces.calls
    begun = calls.start("chat")
    calls.end(begun.id, {"id": answer.id, "object": "chat.completion", "choices": []})
    found = calls.lineage(begun.id)
    assert found.completion is not None
    assert (found.completion.id, found.completion.prompt_tokens) == (answer.id, answer.usage.prompt_tokens)
    assert found.completion.checkpoint is not None
    assert found.completion.checkpoint.model.id == model.id
    assert calls.of_completion(answer.id) == [calls.get(begun.id)]
    assert calls.lineage(calls.start("other").id).completion is None
    view = platform.acting_as(platform.keys.create("acme").key.principal())
    theirs = view.compat.traces.calls.start("chat")
    view.compat.traces.calls.end(theirs.id, {"id": answer.id, "object": "chat.completion"})
    assert view.compat.traces.calls.lineage(theirs.id).completion is None  # it is another entity's
    platform.delete_entity("acme")


def test_an_entity_sees_its_own_only_and_leaves_nothing(platform: Platform) -> None:
    view = platform.acting_as(platform.keys.create("acme").key.principal())
    own = platform.compat.traces.calls.start("a")
    view.compat.traces.calls.record([attrs.evolve(own, op_name="theirs")])  # the same id, in a project of their own
    view.compat.traces.feedback.add("weave:///acme/default/call/x", "thumbs")
    view.compat.traces.objects.publish("prompt", "text")
    table = view.compat.traces.tables.create([{"a": 1}])
    view.compat.traces.tables.put_file("a.py", b"x = 1")
    assert platform.compat.traces.calls.get(own.id).op_name == "a"
    for step in (
        lambda: view.compat.traces.calls.get(own.id, entity="local"),
        lambda: view.compat.traces.feedback.add(own.ref, "thumbs"),
        lambda: view.compat.traces.tables.get(table.digest, entity="local"),
        lambda: view.compat.traces.keep(0),
    ):
        with pytest.raises(Forbidden):
            step()
    with pytest.raises(NotFound):
        platform.compat.traces.tables.get(table.digest)
    assert platform.delete_entity("acme") >= 7
    assert list(platform._runtime.artifacts.names()) == []


def test_old_calls_are_removed_with_their_feedback(platform: Platform, clock: ManualClock) -> None:
    platform.compat.traces.calls.record([call(at - 10 * 86400) for at in range(150)])
    platform.compat.traces.feedback.add("weave:///local/default/call/c-864000", "thumbs")
    new = TracedCall("", "", "new", "t", "a", clock.now())
    platform.compat.traces.calls.record([new])
    assert platform.compat.traces.keep(9) == 150
    assert (ids(platform.compat.traces.calls.query()), platform.compat.traces.keep(9)) == (["new"], 0)


def test_what_no_store_can_keep_is_refused_by_its_place(platform: Platform) -> None:
    for wrong, place in (
        ({"inputs": {"a": float("nan")}}, 0),
        ({"trace_id": ""}, 0),
        ({"parent_id": "x" * 129}, 0),
    ):
        with pytest.raises(InvalidInput) as caught:
            platform.compat.traces.calls.record([call(0, **wrong)])
        assert caught.value.problems[0].loc[0] == place
    with pytest.raises(InvalidInput):
        platform.compat.traces.feedback.record(
            [Feedback("local", "default", "x", "r", "t", START, {"a": float("inf")})]
        )


def test_tables_and_files_are_named_by_their_content(platform: Platform) -> None:
    tables = platform.compat.traces.tables
    rows = [{"n": at % 300} for at in range(700)]
    made = tables.create(rows)
    assert tables.create(rows) == made
    assert [row.value for row in tables.rows(made.digest)] == rows
    assert [row.index for row in tables.rows(made.digest, 698)] == [698, 699]
    digests = list(tables.digests(made.digest))
    assert tables.of_digests(digests, expected=made.digest) == made
    wanted = digests[5]
    assert [row.index for row in tables.rows(made.digest, keep=wanted.__eq__)] == [5, 305, 605]
    assert tables.count(made.digest) == 700
    assert len(list(tables.rows(tables.create([]).digest))) == 0
    with pytest.raises(Conflict):
        tables.create(rows, expected="0" * 64)
    with pytest.raises(InvalidInput):
        tables.of_digests(["unknown"])
    file = tables.put_file("a.py", b"x = 1")
    assert tables.put_file("b.py", b"x = 1") == file
    opened, size = tables.open_file(file.digest)
    with opened:
        assert (opened.read(), size) == (b"x = 1", 5)
    with pytest.raises(NotFound):
        tables.open_file("unknown")
    assert platform.remove_orphans(grace=0).missing == ()
    with tables.open_file(file.digest)[0] as kept:
        assert kept.read() == b"x = 1"


def test_objects_have_versions_and_references_lead_into_them(platform: Platform) -> None:
    objects, tables = platform.compat.traces.objects, platform.compat.traces.tables
    table = tables.create([{"q": "a"}, {"q": "b"}])
    ref = f"weave:///local/default/table/{table.digest}"
    value = {"name": "quiz", "rows": ref, "parts": [1, {"deep": True}]}
    first = objects.publish("Quiz", value)
    assert objects.publish("Quiz", value) == first
    second = objects.publish("Quiz", {**value, "name": "other"})
    assert (second.index, objects.is_latest(first), objects.is_latest(second)) == (1, False, True)
    root = "weave:///local/default/object/Quiz"
    assert canonical_json(objects.read(f"{root}:v0")) == canonical_json(value)
    assert objects.read(f"{root}:latest/attr/name") == "other"
    assert objects.read(f"{root}:v0/attr/parts/index/1/key/deep") is True
    assert objects.read(f"{root}:v0/attr/rows/index/1/key/q") == "b"
    assert objects.read(f"{root}:v0/attr/rows/id/{next(tables.digests(table.digest))}") == {"q": "a"}
    begun = platform.compat.traces.calls.start("a", {"x": 5})
    assert objects.read(f"{begun.ref}/attr/inputs/key/x") == 5
    assert [one.index for one in objects.list(["Quiz"])] == [0, 1]
    assert objects.delete("Quiz", ["v0"]) == 1
    with pytest.raises(ObjectDeleted):
        objects.get("Quiz", "v0")
    for missing in (f"{root}:v9", f"{root}:latest/attr/none", f"{root}:latest/attr/rows/index/7"):
        with pytest.raises(NotFound):
            objects.read(missing)
    with pytest.raises(InvalidInput):
        objects.read("text")
    with pytest.raises(InvalidInput):
        objects.publish("a b", 1)
    with pytest.raises(Conflict):
        objects.publish("x", 1, expected="other")


def test_a_dataset_of_an_evaluation_is_found_as_an_object(platform: Platform) -> None:
    rows = [{"prompt": "a"}, {"prompt": "b"}]
    made = platform.evaluations.objects.publish("dataset", "asked", {}, rows)
    found = platform.compat.traces.objects.read(str(made.ref))
    assert (found["_type"], found["name"]) == ("Dataset", "asked")
    table = found["rows"].rpartition("/")[2]
    assert [row.value for row in platform.compat.traces.tables.rows(table)] == rows
    assert platform.compat.traces.objects.read(f"{made.ref}/attr/rows/index/1") == rows[1]
    platform.evaluations.objects.delete("dataset", "asked")
