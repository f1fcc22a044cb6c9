"""Events of jobs that ended long ago are exported and removed, in small steps; everything else stays."""

import json
from pathlib import Path
from typing import Any

import pytest

from modelyard.domain.job import JobStatus, SupersededEvent
from modelyard.errors import InvalidInput
from modelyard.parts.retention import events as event_retention
from modelyard.parts.retention import retained
from modelyard.parts.retention.events import keep_events


def finished(yard: Any, *lanes: str) -> list[str]:
    jobs = [yard.sft(4, lane).id for lane in lanes]
    yard.worker().run_until_idle()
    return jobs


def test_events_of_old_jobs_go_and_those_of_young_and_of_running_ones_stay(yard: Any) -> None:
    old = finished(yard, "a", "b")
    kept = {job: yard.job(job) for job in old}
    waiting = yard.sft(4, "w")
    yard.abandon(1)
    yard.clock.advance(days=91)
    young = finished(yard, "c")
    before = sum(len(yard.events(job)) for job in old)
    removed = keep_events(yard.runtime, 90, None)
    assert (removed.events, removed.jobs) == (before, 2)
    assert [yard.events(job) for job in old] == [[], []]
    assert {job: yard.job(job) for job in old} == kept
    assert len(yard.events(young[0])) > 1
    assert yard.job(waiting.id).status in (JobStatus.RUNNING, JobStatus.SUCCEEDED)
    assert keep_events(yard.runtime, 90, None).events == 0


def test_they_are_exported_first_with_what_they_replaced(
    yard: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_retention, "AT_ONCE", 3)
    job = yard.sft(4, "a")
    yard.abandon(3)
    yard.clock.advance(yard.runtime.settings.lease)
    worker = yard.worker()
    worker.run_next()
    yard.clock.advance(yard.runtime.settings.lease)
    worker.run_until_idle()
    events = yard.events(job.id)
    superseded = yard.runtime.store.read(
        lambda snapshot: [old for event in events for old in snapshot.page(SupersededEvent, "by_event", event.id)]
    )
    yard.clock.advance(days=2)
    file = tmp_path / "events.jsonl"
    file.write_text('{"earlier": "export"}\n')
    keep_events(yard.runtime, 1, file)
    first, *lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert first == {"earlier": "export"}
    assert sorted(one["seq"] for one in lines if "seq" in one) == [event.seq for event in events]
    assert sorted(one["event_id"] for one in lines if "event_id" in one) == sorted(old.event_id for old in superseded)
    assert superseded
    assert [one["data"] for one in lines if one.get("type") == "gradient_step"]
    left = yard.runtime.store.read(
        lambda snapshot: [old for event in events for old in snapshot.page(SupersededEvent, "by_event", event.id)]
    )
    assert left == []


def test_what_cannot_be_exported_stays(yard: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [job] = finished(yard, "a")
    yard.clock.advance(days=2)

    def full(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(retained, "sync", full)
    with pytest.raises(OSError, match="full"):
        keep_events(yard.runtime, 1, tmp_path / "events.jsonl")
    assert yard.events(job)


def test_days_are_more_than_none(yard: Any) -> None:
    with pytest.raises(InvalidInput):
        keep_events(yard.runtime, 0, None)


def test_a_new_file_has_its_name_on_the_disk_before_an_event_is_removed(
    yard: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = finished(yard, "a")
    yard.clock.advance(days=2)
    left: list[tuple[str, int]] = []
    monkeypatch.setattr(retained, "sync_folder", lambda folder: left.append((folder, len(yard.events(job)))))
    keep_events(yard.runtime, 1, tmp_path / "events.jsonl")
    assert left[0][0] == str(tmp_path)
    assert left[0][1] > 0
    assert yard.events(job) == []
