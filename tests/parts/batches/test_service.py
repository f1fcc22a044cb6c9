"""Batches: every line is answered once, in order; what a batch has written stays however it ends."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from batch_files import CHAT, asking, lines_of, uploaded
from http_client import client_of
from modelyard import Platform, Settings, open_platform
from modelyard.backends import ScriptedBackend
from modelyard.backends.echo import EchoBackend
from modelyard.domain.catalogue import Pricing
from modelyard.domain.completion import CompletionRequest
from modelyard.domain.identity import Principal, Scope
from modelyard.domain.job import Job
from modelyard.errors import Forbidden, IdempotencyKeyUsed, InvalidInput, NotFound, NoWorker, Overloaded
from modelyard.parts.batches import job as batch_job
from modelyard.parts.batches import lines
from modelyard.parts.batches.parts import PartWriter
from modelyard.parts.batches.records import BatchJob, BatchStatus
from modelyard.testing import ManualClock


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    with open_platform() as platform:
        yield platform


def batch_of(platform: Platform, *requests: bytes, **options: Any) -> BatchJob:
    """A batch that no worker has seen."""
    return platform.compat.batches.create(uploaded(platform, requests), **options)


def ended(platform: Platform, *requests: bytes) -> BatchJob:
    batch = batch_of(platform, *requests)
    platform.worker().run_until_idle()
    return platform.compat.batches.get(batch.id)


def test_every_line_is_answered_in_order(platform: Platform) -> None:
    ids = [f"line {number}" for number in range(170)]
    batch = batch_of(platform, *(asking(one, one) for one in ids), metadata={"for": "a test"})
    assert (batch.status, batch.total, batch.output_file_id) == (BatchStatus.VALIDATING, 0, None)
    platform.worker().run_until_idle()
    batch = platform.compat.batches.get(batch.id)
    assert (batch.status, batch.total, batch.completed, batch.failed) == (BatchStatus.COMPLETED, 170, 170, 0)
    assert (batch.error_file_id, batch.problems, batch.metadata) == (None, (), {"for": "a test"})
    found = lines_of(platform, batch.output_file_id)
    assert [line["custom_id"] for line in found] == ids
    assert [line["response"]["body"]["choices"][0]["message"]["content"] for line in found] == ids
    assert len({line["id"] for line in found}) == 170
    file = platform.compat.files.get(str(batch.output_file_id))
    assert (file.purpose, file.entity, file.project) == ("batch_output", batch.entity, batch.project)
    platform.compat.files.delete(file.id)
    assert set(platform._runtime.artifacts.names()) == {
        part["artifact"] for other in platform.compat.files.list() for part in other.parts.values()
    }


def test_what_a_line_does_wrong_is_its_own_error(platform: Platform) -> None:
    batch = ended(
        platform,
        asking("hot", temperature=9),
        asking("good"),
        asking("unknown", model="nothing"),
        asking("streamed", stream=True),
        asking("misspelt", response_format={"type": "json_schema", "json_schema": {"name": "a", "strcit": True}}),
    )
    assert (batch.status, batch.completed, batch.failed) == (BatchStatus.COMPLETED, 1, 4)
    assert [line["custom_id"] for line in lines_of(platform, batch.output_file_id)] == ["good"]
    found = {line["custom_id"]: line["response"] for line in lines_of(platform, batch.error_file_id)}
    assert {name: (one["status_code"], one["body"]["error"]["param"]) for name, one in found.items()} == {
        "hot": (400, "temperature"),
        "unknown": (404, "model"),
        "streamed": (400, "stream"),
        "misspelt": (400, "response_format.json_schema.strcit"),
    }


@pytest.mark.parametrize(
    ("requests", "found"),
    [
        ([b""], [("empty_file", None, None)]),
        ([b"{"], [("invalid_line", 1, None)]),
        ([asking("a"), b"\n", b"[]\n", asking("")], [("invalid_line", 3, None), ("invalid_line", 4, "custom_id")]),
        ([asking("a"), asking("b"), asking("a")], [("duplicate_custom_id", 3, "custom_id")]),
        ([asking("a", url="/v1/embeddings")], [("invalid_line", 1, "url")]),
        ([asking("a").replace(b"POST", b"GET")], [("invalid_line", 1, "method")]),
        ([asking("a").replace(b'"method"', b'"methd": 1, "method"')], [("invalid_line", 1, "methd")]),
        (
            [b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": 1}'],
            [("invalid_line", 1, "body")],
        ),
        ([b"x\n"] * 200, [("invalid_line", number + 1, None) for number in range(100)]),
    ],
)
def test_a_file_at_fault_fails_before_any_line_is_answered(
    platform: Platform, requests: list[bytes], found: list[object]
) -> None:
    before = len(list(platform.usage.list()))
    batch = ended(platform, *requests) if requests != [b""] else ended(platform, b"\n")
    assert (batch.status, batch.total, batch.output_file_id) == (BatchStatus.FAILED, 0, None)
    assert [(one.code, one.line, one.param) for one in batch.problems] == found
    assert len(list(platform.usage.list())) == before


def test_there_is_a_limit_of_lines(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINES", 2)
    assert [one.code for one in ended(platform, *map(asking, "abc")).problems] == ["too_many_lines"]


def test_what_cannot_be_a_batch_is_refused(platform: Platform) -> None:
    file = uploaded(platform, [asking("a")])
    other = platform.compat.files.create("a", b"x", purpose="user_data").id
    for options, place in (
        ({"endpoint": "/v1/moderations"}, "endpoint"),
        ({"output_expires_after": timedelta(1, 1) * 31}, "output_expires_after"),
        ({"input_file": other}, "input_file_id"),
    ):
        with pytest.raises(InvalidInput) as wrong:
            platform.compat.batches.create(options.pop("input_file", file), **options)  # type: ignore[arg-type]
        assert [problem.loc for problem in wrong.value.problems] == [(place,)]
    with pytest.raises(NotFound):
        platform.compat.batches.create("nothing")
    with pytest.raises(NoWorker):
        platform.compat.batches.create(file, require_worker=True)


def test_the_same_request_under_a_key_is_one_batch(platform: Platform) -> None:
    file = uploaded(platform, [asking("a")])
    first = platform.compat.batches.create(file, idempotency_key="k")
    assert platform.compat.batches.create(file, idempotency_key="k").id == first.id
    with pytest.raises(IdempotencyKeyUsed):
        platform.compat.batches.create(file, idempotency_key="k", metadata={"a": "b"})
    platform.compat.batches.cancel(first.id)


def test_the_batch_of_another_is_as_if_it_did_not_exist(platform: Platform) -> None:
    batch = batch_of(platform, asking("a"), project="p")
    for scope in (Scope("acme"), Scope("local", frozenset(["q"]))):
        other = platform.acting_as(Principal("other", str(scope.entity), scope)).compat.batches
        assert list(other.list()) == []
        for use in (other.get, other.cancel):
            with pytest.raises(NotFound):
                use(batch.id)
        with pytest.raises(NotFound):
            other.create(batch.input_file_id, project="q")
    with pytest.raises(Forbidden):
        other.list(entity="acme")
    assert platform.compat.batches.list(project="p").page(1).items[0].id == batch.id
    with pytest.raises(NotFound):
        platform.compat.batches.get(platform.compat.files.get(batch.input_file_id).id)
    platform.compat.batches.cancel(batch.id)


def test_a_batch_in_the_queue_is_cancelled_at_once(platform: Platform) -> None:
    batch = platform.compat.batches.cancel(batch_of(platform, asking("a")).id)
    assert (batch.status, batch.completed, batch.output_file_id) == (BatchStatus.CANCELLED, 0, None)
    assert platform.compat.batches.cancel(batch.id) == batch


# ---- ends in the middle ------------------------------------------------------------------------------------------


class Counted(EchoBackend):
    """The echo, which does something before an answer."""

    def __init__(self, before: Callable[[int], None]) -> None:
        super().__init__()
        self.before, self.asked = before, 0

    def stream(self, request: CompletionRequest, model: str) -> Any:
        self.asked += 1
        self.before(self.asked)
        return super().stream(request, model)


@pytest.fixture
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_job, "CONCURRENCY", 1)
    monkeypatch.setattr(batch_job, "AHEAD", 1)
    monkeypatch.setattr(batch_job, "LINES_AT_ONCE", 1)


@pytest.mark.usefixtures("one_at_a_time")
def test_what_was_answered_before_a_cancellation_stays() -> None:
    def before(number: int) -> None:
        if number == 4:
            platform.compat.batches.cancel(batch.id)
            seen.append(platform.compat.batches.get(batch.id).status)

    seen: list[BatchStatus] = []
    with open_platform(backend=Counted(before)) as platform:
        batch = batch_of(platform, *map(asking, "abcdefghij"))
        platform.worker().run_until_idle()
        batch = platform.compat.batches.get(batch.id)
        found = lines_of(platform, batch.output_file_id)
        assert len(list(platform.usage.list())) == len(found) == batch.completed
    assert seen == [BatchStatus.CANCELLING]
    assert (batch.status, batch.total) == (BatchStatus.CANCELLED, 10)
    assert [line["custom_id"] for line in found] == list("abcd")


@pytest.mark.usefixtures("one_at_a_time")
def test_what_is_not_answered_in_a_day_has_expired() -> None:
    def before(number: int) -> None:
        if number == 4:
            clock.advance(24 * 3600)

    clock = ManualClock()
    with open_platform(backend=Counted(before), clock=clock, settings=Settings(lease=1e9, longest_row=1e9)) as platform:
        batch = batch_of(platform, *map(asking, "abcdefghij"))
        platform.worker().run_until_idle()
        batch = platform.compat.batches.get(batch.id)
        done = lines_of(platform, batch.output_file_id)
        rest = lines_of(platform, batch.error_file_id)
    assert (batch.status, batch.problems) == (BatchStatus.EXPIRED, ())
    assert (batch.completed, batch.failed) == (len(done), len(rest))
    assert [line["custom_id"] for line in (*done, *rest)] == list("abcdefghij")
    assert len(done) == 4
    assert {line["error"]["code"] for line in rest} == {"batch_expired"}


@pytest.mark.usefixtures("one_at_a_time")
def test_a_budget_ends_a_batch_which_keeps_what_was_paid_for() -> None:
    backend = EchoBackend(pricing=Pricing(Decimal(1), Decimal(1)))
    with open_platform(backend=backend) as platform:
        platform.usage.set_budget(10)
        batch = ended(platform, *(asking(one, max_tokens=1) for one in "abcdefghij"))
        found = lines_of(platform, batch.output_file_id)
        spent = platform.usage.get_budget()
    assert batch.status is BatchStatus.FAILED
    assert "budget" in batch.problems[0].message
    assert 0 < len(found) < 10
    assert spent is not None
    assert spent.spent == 2 * len(found)


def test_a_worker_that_leaves_gives_the_batch_back_with_what_is_done() -> None:
    def before(number: int) -> None:
        if number == 30:
            stop.append(True)

    stop: list[bool] = []
    with open_platform(backend=Counted(before)) as platform:
        batch = batch_of(platform, *(asking(str(number)) for number in range(120)))
        runner = platform.worker()._runner
        claimed = runner.claim()
        assert claimed is not None
        runner.run(claimed, lambda: bool(stop))
        job = platform._runtime.store.read(lambda snapshot: snapshot.get(Job, batch.id))
        assert 0 < job.resume_step < 120
        assert platform.compat.batches.get(batch.id).status is BatchStatus.IN_PROGRESS
        platform.worker().run_until_idle()
        batch = platform.compat.batches.get(batch.id)
        assert [line["custom_id"] for line in lines_of(platform, batch.output_file_id)] == list(map(str, range(120)))
        assert len(list(platform.usage.list())) == 120


def test_a_backend_that_is_busy_is_asked_again() -> None:
    backend = ScriptedBackend(
        [Overloaded("later", 0.001), Overloaded("later", 0.001), "done", *[Overloaded("no", 0.001)] * 5]
    )
    with open_platform(backend=backend, clock=ManualClock()) as platform:
        batch = ended(platform, asking("a", model="scripted"))
        assert (batch.completed, batch.failed) == (1, 0)
        batch = ended(platform, asking("b", model="scripted"))
        assert lines_of(platform, batch.error_file_id)[0]["response"]["status_code"] == 503


def test_a_rate_limit_is_waited_for() -> None:
    clock = ManualClock()
    with open_platform(clock=clock) as platform:
        key = platform.keys.create(requests_per_minute=2)
        own = platform.acting_as(key.key.principal())
        batch = own.compat.batches.create(uploaded(own, map(asking, "abcde")))
        platform.worker().run_until_idle()
        assert own.compat.batches.get(batch.id).completed == 5
        assert {entry.key_id for entry in platform.usage.list()} == {key.key.id}


def test_a_deleted_input_fails_the_batch_in_words(platform: Platform) -> None:
    batch = batch_of(platform, asking("a"))
    platform.compat.files.delete(batch.input_file_id)
    platform.worker().run_until_idle()
    batch = platform.compat.batches.get(batch.id)
    assert batch.status is BatchStatus.FAILED
    assert "upload the input again" in batch.problems[0].message


def test_a_deleted_entity_leaves_nothing() -> None:
    with open_platform(entity="acme") as platform:
        ended(platform, asking("a"), asking("b", temperature=9))
        platform.delete_entity("acme")
        assert list(platform._runtime.artifacts.names()) == []
        assert list(platform.compat.batches.list()) == list(platform.compat.files.list()) == []


def test_parts_stay_few_and_in_order(platform: Platform) -> None:
    before, loose = set(platform._runtime.artifacts.names()), list[str]()
    writer, parts = PartWriter(platform._runtime.artifacts, loose), {}
    for number in range(300):
        parts = dict(writer.add(parts, "output", number, [b"%d\n" % number]))
        parts = dict(writer.add(parts, "error", number, []))
        writer.recorded()
    assert len(parts) <= 45
    assert sum(part["rows"] for part in parts.values()) == 300
    read = b"".join(writer._bytes_of(parts, sorted(parts)))
    assert read.split() == [b"%d" % number for number in range(300)]
    assert {part["artifact"] for part in parts.values()} == set(platform._runtime.artifacts.names()) - before
    assert loose == []
    for part in parts.values():
        platform._runtime.artifacts.remove(part["artifact"])


@pytest.mark.parametrize(
    ("endpoint", "body", "place"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "hi"}]}, ("choices", 0, "message", "content")),
        ("/v1/responses", {"input": "hi"}, ("output", 0, "content", 0, "text")),
        ("/v1/completions", {"prompt": ["hi"]}, ("choices", 0, "text")),
    ],
)
def test_each_interface_answers_in_its_own_words(
    platform: Platform, endpoint: str, body: dict[str, Any], place: tuple[str | int, ...]
) -> None:
    def line(custom_id: str, **more: Any) -> bytes:
        asked = {"custom_id": custom_id, "method": "POST", "url": endpoint, "body": {"model": "echo", **body, **more}}
        return json.dumps(asked).encode() + b"\n"

    batch = batch_of(
        platform, line("good"), line("streamed", stream=True), line("hot", temperature=9), endpoint=endpoint
    )
    platform.worker().run_until_idle()
    batch = platform.compat.batches.get(batch.id)
    (found,) = lines_of(platform, batch.output_file_id)
    answer = found["response"]["body"]
    for step in place:
        answer = answer[step]
    assert answer == "hi"
    refused = {line["custom_id"]: line["response"] for line in lines_of(platform, batch.error_file_id)}
    assert {name: (one["status_code"], one["body"]["error"]["param"]) for name, one in refused.items()} == {
        "streamed": (400, "stream"),
        "hot": (400, "temperature"),
    }


WRONG: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "hologram"}]}]}),
    (CHAT, {"messages": [{"role": "user"}, {"role": "assistant"}]}),
    (CHAT, {"messages": [{"role": "user", "content": "x"}, {"role": "tool", "content": "y", "tool_call_id": "a"}]}),
    (CHAT, {"model": "nothing", "messages": [{"role": "user", "content": "x"}]}),
    (CHAT, {"messages": [{"role": "user", "content": "x " * 400_000}]}),
    (CHAT, {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function", "function": {"nam": 1}}]}),
    ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "hologram"}]}]}),
    ("/v1/responses", {"input": [{"type": "function_call_output", "call_id": "a", "output": "x"}]}),
    ("/v1/completions", {"prompt": ["x", 3]}),
    ("/v1/embeddings", {"input": ["x", ""]}),
]


@pytest.mark.parametrize(("endpoint", "wrong"), WRONG)
def test_what_is_wrong_is_said_in_a_batch_as_it_is_over_http(
    platform: Platform, endpoint: str, wrong: dict[str, Any]
) -> None:
    body = {"model": "echo", **wrong}
    line = {"custom_id": "a", "method": "POST", "url": endpoint, "body": body}
    batch = batch_of(platform, json.dumps(line).encode() + b"\n", endpoint=endpoint)
    platform.worker().run_until_idle()
    (found,) = lines_of(platform, platform.compat.batches.get(batch.id).error_file_id)
    answered = client_of(platform).send("POST", endpoint, body, check=False)
    assert (found["response"]["status_code"], found["response"]["body"]) == (answered.status, answered.json)


def test_the_places_of_a_file_at_fault_are_written_as_all_are(platform: Platform) -> None:
    (problem,) = ended(platform, asking("")).problems
    assert problem.message.startswith("line[1].custom_id: must be a string")


def test_embeddings_are_answered_too(platform: Platform) -> None:
    asked = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": "echo", "input": "hi"}}
    batch = batch_of(platform, json.dumps(asked).encode(), endpoint="/v1/embeddings")
    platform.worker().run_until_idle()
    (found,) = lines_of(platform, platform.compat.batches.get(batch.id).output_file_id)
    assert len(found["response"]["body"]["data"]) == 1
