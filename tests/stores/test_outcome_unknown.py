"""A store that cannot say whether a commit took place, and the list of all kinds of record."""

from collections.abc import Callable, Iterator

import pytest

from modelyard import Platform, open_platform
from modelyard.domain.record import Record
from modelyard.errors import OutcomeUnknown
from modelyard.http.error_responses import DETAIL, ERROR, REASON, failed
from modelyard.http.interface import ErrorFormat
from modelyard.stores import RECORDS, MemoryStore
from unsure_store import UnsureStore, unsure_anywhere

GROUP = {"trajectories": [{"messages_and_choices": [{"role": "user", "content": "a"}], "reward": 1.0}]}
EXAMPLE = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}


@pytest.fixture
def store() -> Iterator[UnsureStore]:
    store = UnsureStore(MemoryStore(RECORDS))
    yield store
    store.close()


def _train(platform: Platform) -> None:
    model = platform.models.create("m", base_model="tabular-mini")
    platform.training.sft(model, [EXAMPLE, EXAMPLE], epochs=3)
    platform.worker().run_until_idle()


def _loop(platform: Platform) -> None:
    model = platform.models.create("m", base_model="tabular-mini")
    task = {"prompt": "a", "expected": "the answer"}
    size = {"rounds": 1, "samples": 2, "tasks_per_round": 1, "max_tokens": 4}
    platform.training.loop(model, [task], "token_f1", held_out=[task], **size)
    platform.worker().run_until_idle()


def _evaluate(platform: Platform) -> None:
    objects = platform.evaluations.objects
    objects.publish("dataset", "d", {}, rows=[{"messages": [{"role": "user", "content": "a"}]}])
    rows = [{"prompt": str(number), "expected": "b"} for number in range(3)]
    platform.evaluations.submit("quiz", "echo", rows, scorers=["exact_match"])
    platform.worker().run_until_idle()


SCENARIOS: dict[str, Callable[[Platform], object]] = {
    "an upload": lambda platform: platform.training.upload("d", [EXAMPLE]),
    "a training": _train,
    "a loop": _loop,
    "an evaluation": _evaluate,
    "trajectories": lambda platform: platform.models.log_trajectories(
        platform.models.create("m", base_model="tabular-mini"), [GROUP]
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.parts) if name == "a loop" else name for name in SCENARIOS]
)
def test_no_record_loses_its_files_whichever_commit_has_an_unknown_outcome(name: str) -> None:
    assert unsure_anywhere(SCENARIOS[name]) > 0


def test_an_idempotency_key_finds_what_may_have_been_stored(store: UnsureStore) -> None:
    with open_platform(store=store) as platform:
        model = platform.models.create("m", base_model="tabular-mini")
        store.unsure = True
        with pytest.raises(OutcomeUnknown):
            platform.training.sft(model, [EXAMPLE], idempotency_key="once")
        store.unsure = False
        again = platform.training.sft(model, [EXAMPLE], idempotency_key="once")
        assert [job.id for job in platform.jobs.list()] == [again.id]


@pytest.mark.parametrize("error_format", [DETAIL, ERROR, REASON])
def test_over_http_it_passes_and_no_client_repeats_it_by_itself(error_format: ErrorFormat) -> None:
    response = failed(OutcomeUnknown("lost"), error_format, "r")
    assert response.status == 503
    assert {"retry-after": "1", "x-should-retry": "false"}.items() <= dict(response.headers).items()
    assert b"look before you send it again" in response.body


def test_records_are_a_sequence() -> None:
    whole = [*RECORDS]
    assert len(RECORDS) == len(whole) > 20
    assert tuple(RECORDS) == tuple(whole) == (*RECORDS,)
    assert RECORDS[0] is whole[0]
    assert RECORDS[-1] is whole[-1]
    assert RECORDS[2:5] == whole[2:5]
    assert whole[3] in RECORDS
    assert list(reversed(RECORDS)) == whole[::-1]
    assert all(isinstance(record, Record) for record in RECORDS)
    with pytest.raises(IndexError):
        RECORDS[len(whole)]
