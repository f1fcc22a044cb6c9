"""A store that cannot say whether a commit took place, and the list of all kinds of record."""

from collections.abc import Iterator
from typing import Any

import pytest

from modelyard import open_platform
from modelyard.domain.record import Record
from modelyard.errors import OutcomeUnknown
from modelyard.http.error_responses import DETAIL, ERROR, REASON, error_status
from modelyard.http.interface import ErrorFormat
from modelyard.stores import RECORDS, MemoryStore
from modelyard.testing import RunTwiceStore

EXAMPLE = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}


class UnsureStore(RunTwiceStore):
    """Commits, and then loses the connection."""

    unsure = False

    def transact(self, step: Any, durable: bool = True) -> Any:
        answer = self._store.transact(step, durable)
        if self.unsure:
            raise OutcomeUnknown("the connection was lost during the commit; look before you try again")
        return answer


@pytest.fixture
def store() -> Iterator[UnsureStore]:
    store = UnsureStore(MemoryStore(RECORDS))
    yield store
    store.close()


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
def test_over_http_it_is_an_error_of_the_server(error_format: ErrorFormat) -> None:
    assert error_status(OutcomeUnknown("lost"), error_format) == 500


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
