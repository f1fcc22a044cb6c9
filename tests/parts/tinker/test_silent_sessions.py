"""Sessions whose client is silent end with their runs; what was saved stays."""

from collections.abc import Iterator
from math import inf
from typing import Any

import attrs
import pytest

from driven_runs import SETTINGS, Driven, course, opened, rows_of
from each import each_case
from modelyard.domain.job import JobStatus
from modelyard.domain.schema import RECORDS
from modelyard.errors import InvalidInput, NotFound, StoreError
from modelyard.parts.tinker import held_run
from modelyard.parts.tinker.held_run import HeldRuns
from modelyard.parts.tinker.records import CommandKind, FutureStatus, SessionStage
from modelyard.parts.tinker.silent_sessions import WATCHED, tidy_sessions
from modelyard.platform.jobs.worker import Worker
from modelyard.stores.memory import MemoryStore
from modelyard.testing.clock import ManualClock
from tinker_messages import forward_backward

IDLE, DAY = SETTINGS.session_idle, 24 * 3600.0


@attrs.define
class Watched(Driven):
    """A run whose platform has a worker that looks after others, each time the clock has moved."""

    clock: ManualClock = attrs.field(factory=ManualClock)
    worker: Worker | None = None

    def later(self, seconds: float) -> None:
        """Let time pass until the worker has looked for long enough."""
        self.worker = self.worker or self.platform.worker()
        self.clock.advance(seconds)
        for _ in range(5):
            self.clock.advance(30.0)
            self.worker.look()

    def stage(self) -> SessionStage:
        return self.platform.compat.training_runs.sessions.get(self.session).session.stage


@pytest.fixture
def watched() -> Iterator[Watched]:
    clock = ManualClock()
    with opened(clock=clock) as platform:
        made = Watched(platform, clock=clock)
        made.begin()
        yield made


def job_of(watched: Watched) -> JobStatus:
    runs = watched.platform.compat.training_runs
    return watched.platform.jobs.get(runs.get(watched.run).job_id).status


def test_a_silent_session_ends_with_its_runs_and_keeps_what_they_saved(watched: Watched) -> None:
    futures = course(watched)
    other = watched.begin(1)
    watched.work()
    watched.later(IDLE - 200)
    assert watched.stage() is SessionStage.OPEN
    watched.later(200)
    assert watched.stage() is SessionStage.ENDED
    runs = watched.platform.compat.training_runs
    why = "cancelled by the end of its session: nothing was heard of the client"
    assert [runs.get(run).ended for run in (other, f"{watched.session}:train:0")] == [why, why]
    assert job_of(watched) is JobStatus.CANCELLED
    watched.run = f"{watched.session}:train:0"
    assert watched.digest("end")
    assert {answer.status for answer in watched.answers(*futures)} == {FutureStatus.DONE}
    fresh = Driven(watched.platform, runs.sessions.begin().id)
    run = runs.create_from(fresh.session, 0, f"tinker://{watched.run}/weights/end", optimizer=True)
    fresh.work()
    assert fresh.answers(run)[0].status is FutureStatus.DONE


def test_a_client_that_comes_back_too_late_hears_why(watched: Watched) -> None:
    course(watched)
    watched.work()
    watched.later(IDLE + 1)
    runs = watched.platform.compat.training_runs
    stored = len(list(watched.platform._runtime.artifacts.names()))
    [answer] = watched.answers(watched.learn(8, "late" * 20_000))
    assert (answer.status, answer.error) == (
        FutureStatus.FAILED,
        "the run has ended: cancelled by the end of its session: nothing was heard of the client",
    )
    assert len(list(watched.platform._runtime.artifacts.names())) == stored
    assert runs.sessions.beat(watched.session).finished == "its client is silent"
    with pytest.raises(InvalidInput, match="is of a session that has finished"):
        watched.begin(2)
    assert watched.answers(runs.unload(watched.run))[0].status is FutureStatus.FAILED


def test_a_session_stays_whose_client_is_there(watched: Watched) -> None:
    watched.work()
    for _ in range(4):
        watched.platform.compat.training_runs.sessions.beat(watched.session)
        watched.later(IDLE / 2)
    assert watched.stage() is SessionStage.OPEN


def test_a_command_shows_that_a_client_is_there(watched: Watched) -> None:
    for number in range(1, 5):
        watched.learn(number, "one")
        watched.work()
        watched.later(IDLE / 2)
    assert watched.stage() is SessionStage.OPEN


def test_a_session_stays_while_a_command_waits_for_a_worker(watched: Watched) -> None:
    for _ in range(5):
        watched.clock.advance(IDLE)
        tidy_sessions(watched.platform._runtime)
    assert watched.stage() is SessionStage.OPEN
    watched.work()
    watched.later(IDLE + 1)
    assert watched.stage() is SessionStage.ENDED


def test_a_run_ends_whose_log_has_a_hole(watched: Watched) -> None:
    watched.learn(2, "after what never came")
    watched.platform.compat.training_runs.finish_session(watched.session, "errored")
    watched.work()
    assert watched.platform.compat.training_runs.get(watched.run).ended == ""
    watched.later(IDLE / 2)
    watched.platform.compat.training_runs.sessions.beat(watched.session)  # of a client that does not know yet
    watched.later(IDLE / 2)
    session = watched.platform.compat.training_runs.sessions.get(watched.session).session
    assert (session.stage, session.finished) == (SessionStage.ENDED, "errored")
    assert job_of(watched) is JobStatus.CANCELLED


def test_what_was_asleep_itself_gives_clients_time(watched: Watched) -> None:
    """A server that was down for hours, or whose clock was corrected, ends nothing at once."""
    watched.work()
    watched.worker = watched.platform.worker()
    watched.clock.jump(2 * IDLE)
    watched.clock.advance(30.0)
    watched.worker.look()
    watched.clock.advance(60.0)
    watched.worker.look()
    assert watched.stage() is SessionStage.OPEN
    watched.platform.compat.training_runs.sessions.beat(watched.session)
    watched.later(IDLE / 2)
    assert watched.stage() is SessionStage.OPEN


@pytest.mark.slow
def test_answers_of_an_ended_session_are_kept_for_a_day(watched: Watched) -> None:
    body = forward_backward(watched.run, 1, rows_of("long") * 2000)
    command = watched.platform.compat.training_runs.command
    futures = [command(watched.run, 1, CommandKind.FORWARD_BACKWARD, {}, body), watched.learn(2, "one")]
    watched.work()
    artifacts = watched.platform._runtime.artifacts
    watched.later(IDLE + 1)
    assert {answer.status for answer in watched.answers(*futures)} == {FutureStatus.DONE}
    assert list(artifacts.names())
    watched.later(DAY)
    assert watched.stage() is SessionStage.CLEARED
    assert {answer.status for answer in watched.answers(*futures)} == {FutureStatus.LOST}
    assert not list(artifacts.names())
    assert watched.platform.compat.training_runs.unload(watched.run)


def test_samplers_of_an_ended_session_are_kept_for_a_day(watched: Watched) -> None:
    runs = watched.platform.compat.training_runs
    samplers = [runs.samplers.create(watched.session, number, base_model="tabular-mini").id for number in range(101)]
    watched.later(IDLE + 1)
    other = runs.samplers.create(runs.sessions.begin().id, 0, base_model="tabular-mini").id
    assert sorted(runs.sessions.get(watched.session).samplers) == sorted(samplers)
    watched.later(DAY)
    assert not runs.sessions.get(watched.session).samplers
    with pytest.raises(NotFound, match="Sampling session"):
        runs.samplers.get(samplers[0])
    assert runs.samplers.get(other).id == other


class Failing(MemoryStore):
    """A store that fails after so many more transactions."""

    left: float = inf

    def transact(self, step: Any, *, durable: bool = True) -> Any:
        self.left -= 1
        if self.left < 0:
            raise StoreError("the store is gone")
        return super().transact(step, durable=durable)


@each_case("transactions", range(4))
def test_what_is_interrupted_is_finished_the_next_time(transactions: int) -> None:
    """The session has finished, its first run has ended, its second: each is a transaction of its own."""
    clock, store = ManualClock(), Failing(RECORDS)
    with opened(store, clock=clock) as platform:
        watched = Watched(platform, clock=clock)
        ids = [watched.begin(0), watched.begin(1)]
        watched.work()
        clock.advance(IDLE)
        tidy_sessions(platform._runtime)
        clock.advance(WATCHED)
        store.left = transactions
        with pytest.raises(StoreError):
            tidy_sessions(platform._runtime)
        store.left = inf
        assert watched.stage() is SessionStage.OPEN
        assert sum(platform.compat.training_runs.get(one).ended != "" for one in ids) == max(0, transactions - 1)
        tidy_sessions(platform._runtime)
        assert watched.stage() is SessionStage.ENDED
        assert all(platform.compat.training_runs.get(one).ended for one in ids)


def test_commands_are_refused_by_the_same_error_however_often(watched: Watched) -> None:
    watched.work()
    watched.later(IDLE + 1)
    command = watched.platform.compat.training_runs.command
    ids = {command(watched.run, 1, CommandKind.OPTIM_STEP, {"learning_rate": 1e-3}) for _ in range(3)}
    assert ids == {f"{watched.run}:1"}


@pytest.mark.parametrize("most", [1, held_run.MOST_HELD])
def test_weights_that_nobody_uses_do_not_stay_open(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Because there are too many, or for too long. What they were is computed again from the log."""
    monkeypatch.setattr(held_run, "MOST_HELD", most)
    clock = ManualClock()
    with opened(clock=clock) as platform:
        ends = []
        for order in ((0, 0, 1, 1), (0, 1, 0, 1)):
            runs = [Watched(platform, clock=clock), Watched(platform, clock=clock)]
            for one in runs:
                one.begin()
            for step, at in enumerate(order):
                learned = sum(earlier == at for earlier in order[:step])
                runs[at].learn(2 * learned + 1, "text")
                runs[at].step(2 * learned + 2)
                runs[at].work()
                clock.advance(IDLE / 2 if most > 1 else 0)
                assert len(platform._runtime.cache.slot(HeldRuns)) <= most
            runs[0].save(5, "end")
            runs[0].work()
            ends.append(runs[0].digest("end"))
        assert ends[0] == ends[1]
        clock.advance(IDLE)
        tidy_sessions(platform._runtime)
        assert not platform._runtime.cache.slot(HeldRuns)
