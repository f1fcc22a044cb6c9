"""What a job that has not ended still reads stays, however old it is; and goes once the job has ended."""

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard import Platform, open_platform
from modelyard.domain.evaluation.run import EvaluationRun, Score
from modelyard.domain.job import Job
from modelyard.errors import InvalidInput, NotFound
from modelyard.parts.batches.files.records import StoredFile
from modelyard.parts.fine_tuning.records import FineTuningRequest
from modelyard.parts.responses.records import ModelResponse
from modelyard.parts.retention import in_use, texts
from modelyard.protocols import Store
from modelyard.testing import ManualClock

ASKED = [{"role": "user", "content": "a question"}]
EXAMPLE = {"messages": [*ASKED, {"role": "assistant", "content": "an answer"}]}
LINE = {
    "custom_id": "1",
    "method": "POST",
    "url": "/v1/chat/completions",
    "body": {"model": "echo", "messages": ASKED},
}
URL = "/v1/chat/completions"


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Platform]:
    with open_platform(tmp_path / "yard.db", clock=ManualClock(datetime.now(UTC))) as platform:
        yield platform


def upload(yard: Platform, row: Mapping[str, Any], purpose: str) -> StoredFile:
    return yard.compat.files.create("rows.jsonl", json.dumps(row).encode(), purpose=purpose)


def queue_batch(yard: Platform) -> None:
    yard.compat.batches.create(upload(yard, LINE, "batch").id, endpoint=URL)


def queue_fine_tuning(yard: Platform) -> None:
    held_out = upload(yard, EXAMPLE, "fine-tune").id
    asked = FineTuningRequest("tabular-mini", upload(yard, EXAMPLE, "fine-tune").id, validation_file=held_out)
    yard.compat.fine_tuning.create(asked)


def queue_training(yard: Platform) -> None:
    yard.training.upload("theirs", [EXAMPLE] * 2)
    model = yard.models.create("bot", base_model="tabular-mini")
    yard.training.sft(model.id, "modelyard:///local/default/theirs:v0")


def queue_evaluation(yard: Platform) -> None:
    yard.evaluations.submit("quiz", "echo", [{"prompt": "q", "expected": "q"}])


def queue_rescoring(yard: Platform) -> None:
    run = yard.evaluations.run("quiz", "echo", [{"prompt": "q", "expected": "q"}]).run
    yard.evaluations.submit_rescore(run.id, ["exact_match"])


def queue_response(yard: Platform) -> None:
    first = yard.compat.responses.create(model="echo", input="first")
    item = yard.compat.responses.create(model="echo", input="another one").output[0]["id"]
    then = yard.compat.responses.create(model="echo", input="then", previous_response_id=first.id)
    input_ = [{"type": "item_reference", "id": item}, {"role": "user", "content": "and then?"}]
    yard.compat.responses.create(model="echo", input=input_, previous_response_id=then.id, background=True)


QUEUED: Mapping[str, Callable[[Platform], object]] = {
    "batch": queue_batch,
    "fine-tuning": queue_fine_tuning,
    "training": queue_training,
    "evaluation": queue_evaluation,
    "rescoring": queue_rescoring,
    "response": queue_response,
}


def forget(yard: Platform) -> None:
    yard.clock.advance(days=2)  # type: ignore[attr-defined]
    for rule in (yard.keep.texts, yard.keep.runs, yard.keep.events):
        rule(1)


def queued(yard: Platform) -> str:
    (job,) = [job for job in yard.jobs.list() if job.status == "queued"]
    return job.id


def job_of(yard: Platform, id: str) -> Job:
    return yard._runtime.store.read(lambda snapshot: snapshot.get(Job, id))


@pytest.mark.parametrize(
    ("kind", "paused"), [*((kind, False) for kind in QUEUED), ("fine-tuning", True), ("training", True)]
)
def test_a_job_that_waited_until_all_was_old_still_succeeds(yard: Platform, kind: str, paused: bool) -> None:
    QUEUED[kind](yard)
    id = queued(yard)
    if paused:
        yard.compat.fine_tuning.pause(id)
    forget(yard)
    if paused:
        yard.compat.fine_tuning.resume(id)
    yard.worker().run_until_idle()
    ended = job_of(yard, id)
    if kind == "batch":  # it has a day
        assert "was not answered within 24 hours" in (ended.error_message or "")
        assert ended.result["error"], "its lines are told to have expired"
    else:
        assert ended.status == "succeeded", ended.error_message
    if kind == "rescoring":
        assert yard._runtime.store.read(lambda snapshot: snapshot.count(Score, "by_run", ended.lane)) == 1
    forget(yard)
    for cls in (StoredFile, ModelResponse, EvaluationRun):
        assert yard._runtime.store.read(lambda snapshot, cls=cls: snapshot.scan(cls, None, 9)) == []
    assert yard.remove_orphans(0).removed == 0


def test_a_batch_is_answered_if_its_file_is_older_than_what_is_kept(yard: Platform) -> None:
    file = upload(yard, LINE, "batch")
    yard.clock.advance(days=2)  # type: ignore[attr-defined]
    batch = yard.compat.batches.create(file.id, endpoint=URL)
    assert yard.keep.texts(1).records == 0
    yard.worker().run_until_idle()
    assert yard.compat.batches.get(batch.id).status == "completed"
    assert yard.keep.texts(1).records == 1
    with pytest.raises(NotFound):
        yard.compat.files.get(file.id)


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_is_asked_while_texts_go_is_refused_or_read(
    yard: Platform, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Between the look at the jobs and the removal, and between the look at the file and the batch."""
    file, first = upload(yard, LINE, "batch"), yard.compat.responses.create(model="echo", input="first")
    yard.clock.advance(days=2)  # type: ignore[attr-defined]
    if when == "before":
        real, asked = texts._old, list[Any]()

        def old(*given: Any) -> Any:
            if not asked:
                asked.append(yard.compat.batches.create(file.id, endpoint=URL).id)
                asked.append(
                    yard.compat.responses.create(
                        model="echo", input="x", previous_response_id=first.id, background=True
                    ).id
                )
            return real(*given)

        monkeypatch.setattr(texts, "_old", old)
        assert yard.keep.texts(1).records == 0
        yard.worker().run_until_idle()
        assert yard.compat.batches.get(asked[0]).status == "completed"
        assert yard.compat.responses.get(asked[1]).status == "completed"
        return
    store = yard._runtime.store
    transact = store.transact

    def removing(step: Any, durable: bool = True) -> Any:
        monkeypatch.setattr(store, "transact", transact)
        assert yard.keep.texts(1).records == (2 if "file" in here else 1)
        return transact(step, durable)

    here = ["file"]
    monkeypatch.setattr(store, "transact", removing)
    with pytest.raises(NotFound):
        yard.compat.batches.create(file.id, endpoint=URL)
    assert not [*yard.jobs.list()]
    again = yard.compat.responses.create(model="echo", input="again")
    yard.clock.advance(days=2)  # type: ignore[attr-defined]
    here.clear()
    monkeypatch.setattr(store, "transact", removing)
    with pytest.raises(InvalidInput, match="does not exist"):
        yard.compat.responses.create(model="echo", input="x", previous_response_id=again.id, background=True)
    assert not [*yard.jobs.list()]


def test_pages_are_read_by_age_and_no_further_than_what_is_old(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "AT_ONCE", 3)
    monkeypatch.setattr(in_use, "_JOBS", 2)
    clock = ManualClock(datetime.now(UTC))
    with open_platform(store=store, artifacts=tmp_path / "artifacts", clock=clock) as platform:
        for _ in range(5):
            queue_batch(platform)
        for _ in range(7):
            platform.chat.complete(model="echo", messages="old", store=True)
        clock.advance(days=2)
        for _ in range(20):
            platform.chat.complete(model="echo", messages="young", store=True)
        read, real = list[int](), texts._page

        def page(*given: Any) -> Any:
            found = real(*given)
            read.append(len(found))
            return found

        monkeypatch.setattr(texts, "_page", page)
        assert platform.keep.texts(1).records == 7
        assert max(read) <= 3
        assert sum(read) <= 7 + 5 + 2 * 3, "some of the young of each class at most"
        assert len([*platform.chat.list()]) == 20
        for batch in platform.compat.batches.list():
            platform.compat.batches.cancel(batch.id)
        assert platform.keep.texts(1).records == 5


@pytest.mark.slow
@examples(30)
@given(links=st.lists(st.tuples(st.integers(0, 30), st.booleans()), min_size=1, max_size=12))
def test_of_any_tree_of_responses_what_queued_ones_continue_stays(links: list[tuple[int, bool]]) -> None:
    clock = ManualClock(datetime.now(UTC))
    with open_platform(clock=clock) as yard:
        made, above, kept = list[str](), dict[str, str | None](), set[str]()
        for number, background in links:
            ended = [id for id in made if id not in kept]
            before = ended[number % len(ended)] if ended and number else None
            one = yard.compat.responses.create(
                model="echo", input="x", previous_response_id=before, background=background or None
            )
            made.append(one.id)
            above[one.id] = before
            if background:
                kept.add(one.id)
        needed = set[str]()
        for id in kept:
            at: str | None = id
            while at is not None:
                needed.add(at)
                at = above[at]
        clock.advance(days=2)
        yard.keep.texts(1)
        assert {one.id for one in yard.compat.responses.list()} == needed
        yard.worker().run_until_idle()
        assert all(yard.compat.responses.get(id).status == "completed" for id in kept)
