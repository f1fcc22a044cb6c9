"""`platform.compat.responses` in Python: whole and streamed, continued, kept, answered in the background."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import pytest

from modelyard import Platform, Settings, open_platform
from modelyard.backends.echo import EchoBackend
from modelyard.domain.completion import CompletionRequest, Delta, Message, Role
from modelyard.domain.identity import Principal, Scope
from modelyard.errors import BackendError, ContextLengthExceeded, InvalidInput, NotFound
from modelyard.parts.responses import conversation
from modelyard.parts.responses.records import ModelResponse
from modelyard.protocols import ServedModel
from modelyard.testing import ManualClock

DAY = 86_400.0


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform() as platform:
        yield platform


class Recording(EchoBackend):
    """Echoes, and keeps what it was asked. It has room for `room` tokens; `before` runs before its second delta."""

    def __init__(self, room: int = 0, before: Any = None) -> None:
        super().__init__()
        self.room, self.before, self.requested = room, before, list[Sequence[Message]]()

    def entries(self) -> Any:
        return [attrs.evolve(one, context_length=self.room) if self.room else one for one in super().entries()]

    def prompt_tokens(self, request: CompletionRequest, model: ServedModel) -> int:
        return sum(len(message.text.split()) for message in request.messages)

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
        self.requested.append(request.messages)
        for at, delta in enumerate(super().stream(request, model)):
            yield from delta if isinstance(delta, list | tuple) else (delta,)
            if at == 0 and self.before is not None:
                self.before()


def test_whole_streamed_and_asynchronous_responses_say_the_same(platform: Platform) -> None:
    async def asynchronously() -> tuple[str, str]:
        whole = await platform.compat.responses.acreate(model="echo", input="one two")
        async with platform.compat.responses.astream(model="echo", input="one two") as events:
            return whole.text, "".join([event.text async for event in events])

    with platform.compat.responses.stream(model="echo", input="one two") as events:
        text = "".join(event.text for event in events)
    assert {
        platform.compat.responses.create(model="echo", input="one two").text,
        text,
        *asyncio.run(asynchronously()),
    } == {"one two"}
    assert len(list(platform.compat.responses.list())) == len(list(platform.usage.list())) == 4


def test_a_stream_that_is_left_is_booked_and_not_stored() -> None:
    with open_platform(backend=Recording()) as platform:
        events = platform.compat.responses.stream(model="echo", input="one two three")
        next(events)
        events.close()
        assert list(platform.compat.responses.list()) == []
        assert [entry.completion_tokens for entry in platform.usage.list()] == [1]


def test_listings_are_of_one_project_model_and_metadata(platform: Platform) -> None:
    ids = [
        platform.compat.responses.create(model="echo", input="x", project=project, metadata={"k": project}).id
        for project in ("a", "b")
    ]
    assert [one.id for one in platform.compat.responses.list(project="a")] == ids[:1]
    assert [one.id for one in platform.compat.responses.list(metadata={"k": "b"})] == ids[1:]
    assert list(platform.compat.responses.list(model="other")) == []
    assert [one.id for one in platform.compat.responses.list(order="desc")] == ids[::-1]


def test_a_response_is_kept_for_its_days_and_then_removed() -> None:
    clock = ManualClock()
    with open_platform(clock=clock, settings=Settings(response_days=2)) as platform:
        old = platform.compat.responses.create(model="echo", input="old")
        clock.advance(1.5 * DAY)
        newer = platform.compat.responses.create(model="echo", input="newer", previous_response_id=old.id)
        clock.advance(DAY)
        with pytest.raises(NotFound):
            platform.compat.responses.get(old.id)
        with pytest.raises(InvalidInput, match="does not exist"):
            platform.compat.responses.create(model="echo", input="x", previous_response_id=newer.id)
        assert [one.id for one in platform.compat.responses.list()] == [newer.id]
        assert len(stored(platform)) == 2
        platform.compat.responses.create(model="echo", input="newest")
        assert old.id not in {one.id for one in stored(platform)}


def stored(platform: Platform) -> Sequence[ModelResponse]:
    return platform._runtime.store.read(lambda snapshot: snapshot.page(ModelResponse, "by_entity", "local"))


def test_too_long_a_chain_is_refused(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "MOST_TURNS", 2)
    last = platform.compat.responses.create(model="echo", input="0")
    for number in range(2):
        last = platform.compat.responses.create(model="echo", input=str(number), previous_response_id=last.id)
    with pytest.raises(InvalidInput, match="continues more than 2 responses"):
        platform.compat.responses.create(model="echo", input="x", previous_response_id=last.id)


def test_the_oldest_turns_are_left_out_where_that_is_wanted() -> None:
    backend = Recording(room=8)
    items = [{"role": "user" if at % 2 == 0 else "assistant", "content": f"word {at}"} for at in range(7)]
    asked: Any = {"model": "echo", "input": items, "instructions": "brief", "max_output_tokens": 1}
    with open_platform(backend=backend) as platform:
        with pytest.raises(ContextLengthExceeded) as refused:
            platform.compat.responses.create(**asked)
        assert refused.value.problems[0].loc == ("input",)
        platform.compat.responses.create(**asked, truncation="auto")
        with pytest.raises(ContextLengthExceeded):
            platform.compat.responses.create(model="echo", input="a " * 9, truncation="auto")
    assert [message.text for message in backend.requested[0]] == ["brief", "word 4", "word 5", "word 6"]
    assert backend.requested[0][0].role is Role.SYSTEM


def test_keywords_are_read_as_clients_send_them(platform: Platform) -> None:
    with pytest.raises(InvalidInput, match="call stream or astream"):
        platform.compat.responses.create(model="echo", input="x", stream=True)  # type: ignore[call-arg]
    with pytest.raises(InvalidInput, match="cannot be streamed"):
        platform.compat.responses.stream(model="echo", input="x", background=True)
    with pytest.raises(InvalidInput, match="background=True"):
        platform.compat.responses.create(model="echo", input="x", idempotency_key="k")
    with pytest.raises(InvalidInput, match="temperatur"):
        platform.compat.responses.create(model="echo", input="x", temperatur=1)  # type: ignore[call-arg]


# ---- in the background -------------------------------------------------------------------------------------------


def test_one_that_is_cancelled_or_deleted_while_it_runs_ends_so_and_pays_for_what_it_made() -> None:
    backend = Recording()
    with open_platform(backend=backend, settings=Settings(poll=1e-9)) as platform:
        for name in ("cancel", "delete"):
            queued = platform.compat.responses.create(model="echo", input="one two three four", background=True)
            backend.before = lambda name=name, id=queued.id: getattr(platform.compat.responses, name)(id)
            platform.worker().run_until_idle()
            backend.before = None
            assert platform.jobs.get(queued.job_id).status == "cancelled"
            if name == "cancel":
                assert platform.compat.responses.get(queued.id).status == "cancelled"
            else:
                with pytest.raises(NotFound):
                    platform.compat.responses.get(queued.id)
        assert all(entry.completion_tokens < 4 for entry in platform.usage.list())


def test_one_that_is_cancelled_at_its_last_word_stays_cancelled() -> None:
    backend = Recording()
    with open_platform(backend=backend, settings=Settings(poll=3600.0)) as platform:
        queued = platform.compat.responses.create(model="echo", input="one two", background=True)
        backend.before = lambda: platform.compat.responses.cancel(queued.id)
        platform.worker().run_until_idle()
        cancelled = platform.compat.responses.get(queued.id)
        assert (cancelled.status, cancelled.output) == ("cancelled", ())
        assert platform.jobs.get(queued.job_id).status == "cancelled"


def test_one_whose_backend_fails_has_failed(platform: Platform) -> None:
    def fail() -> None:
        raise BackendError("it broke")

    with open_platform(backend=Recording(before=fail)) as platform:
        queued = platform.compat.responses.create(model="echo", input="one two", background=True)
        platform.worker().run_until_idle()
        failed = platform.compat.responses.get(queued.id)
        assert (failed.status, failed.error["message"]) == ("failed", "it broke")


def test_one_whose_key_was_revoked_has_failed(platform: Platform) -> None:
    made = platform.keys.create("acme")
    principal = platform.keys.authenticate(made.secret)
    queued = platform.acting_as(principal).compat.responses.create(model="echo", input="x", background=True)
    platform.keys.revoke(made.key.id)
    platform.worker().run_until_idle()
    assert platform.compat.responses.get(queued.id).status == "failed"


def test_all_of_an_entity_is_deleted_with_it(platform: Platform) -> None:
    platform.compat.responses.create(model="echo", input="x", entity="acme")
    platform.compat.responses.create(model="echo", input="x", entity="acme", background=True)
    platform.delete_entity("acme")
    assert list(platform.compat.responses.list(entity="acme")) == []


def test_a_response_leads_to_its_ledger_row_checkpoint_and_training_job(platform: Platform) -> None:
    model = platform.models.create("support", project="desk", base_model="tabular-mini")
    row = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}
    job = platform.training.sft(model.id, [row])
    job.wait()
    for background in (False, True):
        asked: Any = {"model": "local/desk/support:step1", "input": "hi", "background": background}
        response = platform.compat.responses.create(max_output_tokens=3, **asked)
        if background:
            with pytest.raises(NotFound):
                platform.compat.responses.lineage(response.id)
            platform.worker().run_until_idle()
        found = platform.compat.responses.lineage(response.id)
        assert found.id in [entry.id for entry in platform.usage.list()]
        assert (found.model, found.checkpoint_step) == ("local/desk/support", 1)
        assert found.checkpoint is not None
        assert found.checkpoint.job_id == job.id
    with pytest.raises(NotFound):
        platform.acting_as(Principal("other", "globex", Scope("globex"))).compat.responses.lineage(response.id)
