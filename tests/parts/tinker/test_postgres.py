"""Runs on PostgreSQL: their jobs take turns, and go to the end of the queue."""

import pytest

from driven_runs import Driven, course, opened
from modelyard.domain.schema import RECORDS
from modelyard.parts.postgres.store import PostgresStore
from modelyard.parts.tinker import job


def test_two_runs_take_turns_and_end_the_same(yard_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "TURN", 0.0)
    store = PostgresStore(yard_address, RECORDS)
    with opened(store) as platform:
        runs = [Driven(platform), Driven(platform)]
        for one in runs:
            one.begin()
            course(one)
        runs[0].work()
        assert runs[0].digest("end") == runs[1].digest("end")
        assert all(one.attempts > 5 for one in platform.jobs.list())
    store.close()
