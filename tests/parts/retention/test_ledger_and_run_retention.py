"""Rows of the ledger, runs and months of events that are old are exported and removed; totals and the young stay."""

import json
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from modelyard import open_platform
from modelyard.domain.job import JobEvent
from modelyard.domain.usage import LedgerEntry
from modelyard.parts.retention import ledger, runs
from modelyard.protocols import MonthlyStore, Store
from modelyard.stores import RECORDS, MemoryStore, PostgresStore
from modelyard.testing import ManualClock

ROWS = [{"prompt": str(at), "expected": str(at)} for at in range(3)]


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.servers)])
def store(request: pytest.FixtureRequest) -> Store:
    if request.param == "memory":
        return MemoryStore(RECORDS)
    return PostgresStore(request.getfixturevalue("yard_address"), RECORDS)


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def has_dropped(store: Store, cls: type, month: str) -> bool:
    """Whether a month is gone, where months are kept apart."""
    return not isinstance(store, MonthlyStore) or month not in {there.name for there in store.months(cls)}


def test_what_is_old_goes_into_a_file_and_the_rest_stays(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "AT_ONCE", 2)
    monkeypatch.setattr(runs, "AT_ONCE", 2)
    clock = ManualClock(datetime.now(UTC))
    with closing(store), open_platform(store=store, artifacts=tmp_path / "artifacts", clock=clock) as platform:
        begun = clock.now()
        first = platform.evaluations.run("first", "echo", ROWS, project="p").run
        old = [platform.chat.complete(model="echo", messages="old").id for _ in range(5)]
        clock.advance(days=80)
        second = platform.evaluations.run("second", "echo", ROWS, project="p").run
        young = platform.chat.complete(model="echo", messages="young").id
        totals = platform.usage.total()
        booked = [row.id for row in platform.usage.list()]

        file = tmp_path / "ledger.jsonl"
        assert platform.keep.ledger(30, file) == len(booked) - 4
        assert sorted(one["id"] for one in lines(file)) == sorted(booked[:-4])
        assert set(old) < {one["id"] for one in lines(file)}
        assert [row.id for row in platform.usage.list()] == booked[-4:]
        assert booked[-1] == young
        assert platform.usage.total() == totals
        assert has_dropped(store, LedgerEntry, f"ledger_{begun:%Y_%m}")
        assert platform.keep.ledger(30, file) == 0

        file = tmp_path / "runs.jsonl"
        assert (removed := platform.keep.runs(30, file)).runs == 1
        assert [run.id for run in platform.evaluations.runs.list(project="p")] == [second.id]
        run, *parts = lines(file)
        assert (run["id"], len(parts)) == (first.id, removed.parts)
        assert len(parts) == 2 * len(ROWS)
        assert platform.evaluations.runs.status(second.id).completed_rows == len(ROWS)


def test_a_month_of_events_goes_once_every_job_of_it_has_ended(tmp_path: Path, store: Store) -> None:
    clock = ManualClock(datetime.now(UTC))
    month = f"job_events_{clock.now():%Y_%m}"
    with closing(store), open_platform(store=store, artifacts=tmp_path / "artifacts", clock=clock) as platform:
        ended = platform.evaluations.submit("kept", "echo", ROWS, project="p")
        platform.worker().run_until_idle()
        queued = platform.evaluations.submit("waits", "echo", ROWS, project="p")
        job_id = platform.jobs.list().page().items[1].id
        store.transact(lambda tx: tx.add(JobEvent(job_id, 5, "e", "begun", 0, {}, clock.now())))
        clock.advance(days=80)

        def events() -> list[int]:
            return [len(list(platform.evaluations.events(run.id, follow=False))) for run in (ended, queued)]

        before, waiting = events()
        assert before > 1
        file = tmp_path / "events.jsonl"
        removed = platform.keep.events(30, file)
        assert (removed.jobs, removed.events, len(lines(file))) == (1, before, before)
        assert events() == [0, waiting]
        assert not isinstance(store, MonthlyStore) or not has_dropped(store, JobEvent, month)
        platform.evaluations.runs.cancel(queued.id)
        clock.advance(days=80)
        assert platform.keep.events(30).jobs == 1
        assert has_dropped(store, JobEvent, month)
        assert events() == [0, 0]
