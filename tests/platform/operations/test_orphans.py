"""The sweep: it removes files that no record names, and never one whose record is still to come."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import attrs
import pytest

from modelyard import Settings, open_platform
from modelyard.domain.job import JobKind, JobStatus, QueueState
from modelyard.domain.schema import RECORDS
from modelyard.errors import Forbidden, StoreError
from modelyard.parts.uploads.records import Upload
from modelyard.platform.operations import name_shards
from modelyard.platform.operations.orphans import GRACE, Missing, OrphanReport, collect_orphans
from modelyard.protocols import Started, Step, Trained


@attrs.define
class Meanwhile:
    """A clock on which a wait is over at once, after something has happened in it."""

    clock: Any
    happens: Callable[[], object] = lambda: None
    waited: list[float] = attrs.field(factory=list)

    def now(self) -> Any:
        return self.clock.now()

    def monotonic(self) -> float:
        return self.clock.monotonic()

    def sleep(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.happens()


def swept(yard: Any, meanwhile: Callable[[], object] = lambda: None) -> int:
    clock = Meanwhile(yard.clock, meanwhile)
    found = collect_orphans(attrs.evolve(yard.runtime, clock=clock))
    assert clock.waited in ([], [GRACE])
    assert yard.runtime.settings.lease <= GRACE
    assert found.missing == ()
    return found.removed


def orphan(yard: Any) -> str:
    """A file whose writer died before it stored the record."""
    name: str = yard.runtime.artifacts.put([b"lost"]).name
    return name


def test_files_that_no_record_names_go_and_all_others_stay(yard: Any) -> None:
    row = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    yard.sft(2).wait()
    yard.training.upload("rows", [row], project="p")
    yard.models.log_trajectories(yard.model().id, yard.groups(1.0))
    yard.sft(2)
    yard.sft(2)
    before = yard.files()
    assert len(before) == 5
    lost = {orphan(yard), orphan(yard)}
    assert lost <= yard.files()
    assert swept(yard) == 2
    assert yard.files() == before
    assert swept(yard) == 0


def test_the_rows_of_a_dataset_s_version_stay() -> None:
    with open_platform(settings=Settings(lease=0.01)) as platform:
        platform.evaluations.objects.publish("dataset", "questions", {}, [{"q": "1"}], project="p")
        before = set(platform._runtime.artifacts.names())
        platform._runtime.artifacts.put([b"lost"])
        assert platform.remove_orphans(grace=0).removed == 1
        assert set(platform._runtime.artifacts.names()) == before != set()


def test_the_rows_of_a_run_that_can_be_resumed_stay(yard: Any) -> None:
    job = yard.sft(2)
    yard.trainer.before = lambda item: 1 / 0
    yard.worker().run_until_idle()
    name = orphan(yard)
    failed = yard.job(job.id)
    assert failed.status is JobStatus.FAILED
    requested = attrs.evolve(failed, kind=JobKind.EVALUATE, spec={"artifact": name})
    yard.runtime.store.transact(lambda tx: tx.replace(requested))
    orphan(yard)
    assert swept(yard) == 1
    assert name in yard.files()


def test_the_file_of_an_upload_that_is_under_way_stays(yard: Any) -> None:
    now, name = yard.clock.now(), orphan(yard)
    upload = Upload("u", "acme", "p", "rows", now, now + timedelta(hours=1), artifact=name)
    yard.runtime.store.transact(lambda tx: tx.add(upload))
    orphan(yard)
    assert swept(yard) == 1
    assert name in yard.files()


def test_without_an_orphan_there_is_no_grace_period(yard: Any) -> None:
    yard.sft(2).wait()
    clock = Meanwhile(yard.clock)
    assert collect_orphans(attrs.evolve(yard.runtime, clock=clock)) == OrphanReport(0)
    assert clock.waited == []


def test_a_file_that_comes_between_the_looks_stays(yard: Any) -> None:
    orphan(yard)
    came: list[str] = []
    assert swept(yard, lambda: came.append(orphan(yard))) == 1
    assert yard.files() == set(came)


def test_a_file_whose_record_comes_between_the_looks_stays(yard: Any) -> None:
    stored = yard.runtime.artifacts.put([b'{"trajectories": []}\n'])
    model = yard.model()
    assert swept(yard, lambda: yard.training.rl(model, stored)) == 0
    assert stored.name in yard.files()


def test_the_saved_state_of_a_running_job_stays(yard: Any) -> None:
    job = yard.sft(10)
    steps = yard.abandon(5)
    lost = orphan(yard)
    before = yard.files() - {lost}
    assert yard.job(job.id).resume
    assert swept(yard, lambda: next(steps)) == 1
    assert before <= yard.files()


def test_a_job_that_is_silent_but_beats_keeps_its_files_and_nothing_else_does(yard: Any) -> None:
    yard.sft(10)
    runner = yard.runner()
    claimed = yard.claim(runner)
    steps = runner.steps(claimed)
    next(steps)
    orphan(yard)
    claimed.loose.append(orphan(yard))
    before = yard.files()
    assert swept(yard, runner.beat) == 1
    assert set(claimed.loose) < yard.files() < before
    for _ in steps:
        pass
    assert yard.job(claimed.job.id).status == "succeeded"


def test_a_job_that_has_not_beaten_is_fenced_off_before_its_files_go(yard: Any) -> None:
    job = yard.sft(10)
    steps = yard.abandon(2)
    orphan(yard)
    assert swept(yard) == 1
    assert job.status == "queued"
    assert list(steps) == []
    assert job.result().step == 1


def test_a_job_that_beats_again_at_the_last_moment_holds_the_sweep_up(yard: Any) -> None:
    yard.sft(10)
    runner = yard.runner()
    yard.claim(runner)
    orphan(yard)
    clock, transact = Meanwhile(yard.clock), yard.runtime.store.transact

    class Late:
        def __getattr__(self, name: str) -> Any:
            return getattr(yard.runtime.store, name)

        def transact(self, step: Any, durable: bool = True) -> Any:
            runner.beat()
            return transact(step, durable)

    runtime = attrs.evolve(yard.runtime, clock=clock, store=Late())
    assert collect_orphans(runtime) == OrphanReport(0)
    assert collect_orphans(attrs.evolve(yard.runtime, clock=Meanwhile(yard.clock, runner.beat))).removed == 1


def test_records_are_read_a_page_at_a_time(yard: Any) -> None:
    for number in range(3):
        yard.sft(2, f"m{number}").wait()
    orphan(yard)
    reads = []

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(yard.runtime.store, name)

        def read(self, query: Any) -> Any:
            reads.append(found := yard.runtime.store.read(query))
            return found

    clock = Meanwhile(yard.clock)
    assert collect_orphans(attrs.evolve(yard.runtime, clock=clock, store=Counting())).removed == 1
    naming = [record for record in RECORDS if record.artifacts is not None]
    assert len(reads) == 2 * (len(naming) - 1 + len(QueueState) + 1)


@pytest.mark.parametrize("how", ["taken away", "given back", "cancelled and ended"])
def test_once_a_claim_is_over_it_holds_the_sweep_up_no_longer(yard: Any, how: str) -> None:
    job = yard.sft(10)
    steps = yard.abandon(2)
    orphan(yard)

    def end() -> None:
        if how == "taken away":
            yard.lose_worker()
        else:
            if how == "cancelled and ended":
                job.cancel()
            steps.close()

    assert swept(yard, end) >= 1
    assert yard.files() == set() if how == "cancelled and ended" else len(yard.files()) == 1


def test_the_first_file_of_a_checkpoint_stays_while_its_second_is_still_written(yard: Any) -> None:
    swept_meanwhile = []

    def slowly() -> Iterator[bytes]:
        orphan(yard)
        swept_meanwhile.append(swept(yard, runner.beat))
        yield b"second"

    class TwoFiles:
        def methods(self, base_model: str) -> tuple[str, ...]:
            return ("sft",)

        def train(self, *_: Any) -> Iterator[Any]:
            yield Started(1)
            yield Step(1, {})
            yield Trained({"first": [b"first"], "second": slowly()}, {})

    yard.runtime = attrs.evolve(yard.runtime, trainers=(TwoFiles(),))
    job, runner = yard.sft(2), yard.runner()
    runner.run(yard.claim(runner))
    checkpoint = job.result()
    assert swept_meanwhile == [1]
    assert {file["artifact"] for file in checkpoint.files.values()} <= yard.files()
    assert swept(yard) == 0


def test_leftovers_of_an_ended_job_are_removed(yard: Any) -> None:
    job = yard.sft(2)
    data = yard.job(job.id).spec["artifact"]
    kept = yard.runtime.artifacts
    yard.runtime = attrs.evolve(yard.runtime, artifacts=Undying(kept))
    yard.worker().run_until_idle()
    assert data in set(kept.names())
    yard.runtime = attrs.evolve(yard.runtime, artifacts=kept)
    assert swept(yard) == 1
    assert data not in yard.files()


@attrs.frozen
class Undying:
    """Artifacts from which nothing is removed, as when the process dies before it could."""

    inner: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def remove(self, name: str) -> None:
        return None


def test_a_yard_on_disk_is_swept_too(yard_on_disk: Any) -> None:
    yard = yard_on_disk
    for number in range(3):
        yard.sft(2, f"m{number}").wait()
    before = yard.files()
    orphan(yard)
    assert swept(yard) == 1
    assert yard.files() == before


def test_a_record_that_has_lost_its_artifact_is_found_and_reported(yard: Any, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = yard.sft(2).result()
    yard.sft(2, "other").wait()
    ((_, file),) = checkpoint.files.items()
    yard.runtime.artifacts.remove(file["artifact"])
    lost = orphan(yard)
    found = collect_orphans(attrs.evolve(yard.runtime, clock=Meanwhile(yard.clock)))
    assert found == OrphanReport(1, (Missing("Checkpoint", checkpoint.id, "acme", file["artifact"]),))
    assert lost not in yard.files()
    assert checkpoint.id in caplog.text


def test_a_record_that_goes_between_the_looks_has_lost_nothing(yard: Any) -> None:
    checkpoint = yard.sft(2).result()
    for file in checkpoint.files.values():
        yard.runtime.artifacts.remove(file["artifact"])
    assert swept(yard, lambda: yard.models.delete(yard.model().id)) == 0


def test_names_that_are_spilled_to_files_are_joined_alike(yard_on_disk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    yard, opened = yard_on_disk, list[Any]()
    for number in range(4):
        yard.sft(2, f"m{number}").wait()
    for number in range(2):
        (file,) = yard.models.checkpoint(yard.models.list().page().items[number], 1).files.values()
        yard.runtime.artifacts.remove(file["artifact"])
    before = yard.files()
    lost = {orphan(yard) for _ in range(50)}
    scratch = yard.runtime.artifacts.scratch
    monkeypatch.setattr(yard.runtime.artifacts, "scratch", lambda: opened.append(scratch()) or opened[-1])
    monkeypatch.setattr(name_shards, "SPILLED_AT", 7)
    found = collect_orphans(attrs.evolve(yard.runtime, clock=Meanwhile(yard.clock)))
    assert (found.removed, len(found.missing)) == (50, 2)
    assert yard.files() == before
    assert lost.isdisjoint(before)
    assert opened
    assert all(file.closed for file in opened)


def test_old_unfinished_uploads_are_removed_and_counted(yard: Any) -> None:
    asked: list[float] = []
    artifacts = Uploading(yard.runtime.artifacts, lambda seconds: asked.append(seconds) or 3)
    assert collect_orphans(attrs.evolve(yard.runtime, artifacts=artifacts)) == OrphanReport(0, (), 3)
    assert asked == [24 * 3600]


def test_uploads_that_cannot_be_listed_do_not_hold_the_sweep_up(yard: Any, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(seconds: float) -> int:
        raise StoreError("the object store refuses it")

    orphan(yard)
    runtime = attrs.evolve(
        yard.runtime, artifacts=Uploading(yard.runtime.artifacts, refuse), clock=Meanwhile(yard.clock)
    )
    assert collect_orphans(runtime).removed == 1
    assert "the object store refuses it" in caplog.text


@attrs.frozen
class Uploading:
    """Artifacts with unfinished uploads."""

    inner: Any
    remove_unfinished: Callable[[float], int]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def test_only_the_host_may_sweep() -> None:
    with open_platform() as platform:
        assert platform.remove_orphans() == OrphanReport(0)
        key = platform.keys.create("acme")
        with pytest.raises(Forbidden):
            platform.acting_as(platform.keys.authenticate(key.secret)).remove_orphans()


def test_every_record_that_can_name_an_artifact_declares_its_artifacts() -> None:
    telling = {"artifact", "artifacts", "rows_artifact", "file", "files", "parts", "resume", "spec"}
    named = {record.cls for record in RECORDS if telling & {field.name for field in attrs.fields(record.cls)}}
    assert named <= {record.cls for record in RECORDS if record.artifacts is not None}
