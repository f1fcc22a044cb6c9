"""The rules of the queue, one by one."""

from typing import Any

import attrs
import pytest

from modelyard.domain.job import (
    ENDED,
    Claim,
    Job,
    JobKind,
    JobProgress,
    JobStatus,
    NewEvent,
    QueueState,
    SupersededEvent,
)
from modelyard.errors import Conflict, LeaseLost, RateLimited
from modelyard.platform.job_types import job_types_of
from modelyard.platform.jobs.attempts import end_attempt
from modelyard.platform.jobs.claims import (
    Claimant,
    claim,
    claim_of,
    heartbeat,
    ready_in_lane,
    record_events,
    require_claim,
)
from modelyard.platform.jobs.expired_claims import expire
from modelyard.platform.jobs.queue import (
    LOSSES_PER_CRASH,
    WorkerLoss,
    cancel,
    crash,
    end,
    enqueue,
    fail,
    request_cancel,
    request_pause,
    requeue,
    resume_paused,
    save_resume,
    succeed,
)
from modelyard.platform.jobs.shares import demands_of, ready_needs, take_ready
from modelyard.protocols import Snapshot

JOB_TYPES = job_types_of(())


MANY = 1000


def put(yard: Any, lane: str = "lane", **fields: Any) -> Job:
    job = yard.new_job(lane, **fields)
    return yard.runtime.store.transact(lambda tx: enqueue(tx, job, MANY))


def ready(snapshot: Snapshot, lane: str | None = None) -> Job | None:
    if lane is not None:
        return ready_in_lane(snapshot, lane)
    return take_ready(snapshot, "acme", ready_needs(snapshot, demands_of(snapshot, "acme")))


def take(yard: Any, lane: str | None = None) -> Job:
    claimed = yard.runtime.store.transact(lambda tx: claim(tx, Claimant("worker"), yard.clock.now(), ready(tx, lane)))
    assert claimed is not None
    return claimed[0]


def token_of(yard: Any, job: Job) -> Claim:
    """The claim that holds on a job, or held on it last."""
    return claim_of(yard.progress(job.id))


def step(yard: Any, job: Job, number: int, **data: float) -> JobProgress:
    event = NewEvent(yard.runtime.ids(), "gradient_step", data or {"loss": 1.0}, number)
    token, now = token_of(yard, job), yard.clock.now()
    return yard.runtime.store.transact(lambda tx: record_events(tx, token, [event], now))


def settle(yard: Any, job: Job, how: Any, *more: Any) -> Job:
    event_id, now = yard.runtime.ids(), yard.clock.now()
    return yard.runtime.store.transact(lambda tx: how(tx, JOB_TYPES, tx.get(Job, job.id), event_id, *more, now))


def places(yard: Any, *jobs: Job) -> list[QueueState]:
    return [yard.job(job.id).place for job in jobs]


# ---- lanes -------------------------------------------------------------------------------------------------------


def test_only_the_first_job_of_a_lane_is_ready_and_its_end_makes_the_next_one_ready(yard: Any) -> None:
    first, second, third = (put(yard) for _ in range(3))
    assert places(yard, first, second, third) == [QueueState.READY, QueueState.WAITING, QueueState.WAITING]
    settle(yard, take(yard), succeed)
    assert places(yard, first, second, third) == [QueueState.DONE, QueueState.READY, QueueState.WAITING]
    settle(yard, take(yard), fail, "why")
    assert places(yard, first, second, third) == [QueueState.DONE, QueueState.DONE, QueueState.READY]


def test_jobs_of_different_lanes_are_claimed_side_by_side_the_oldest_first(yard: Any) -> None:
    for lane in ("b", "a", "b", "c"):
        put(yard, lane)
    assert [take(yard).lane for _ in range(3)] == ["b", "a", "c"]
    assert yard.runtime.store.transact(lambda tx: claim(tx, Claimant("worker"), yard.clock.now(), ready(tx))) is None


def test_a_claim_may_be_limited_to_one_lane(yard: Any) -> None:
    put(yard, "a")
    job = put(yard, "b")
    assert take(yard, "b").id == job.id
    assert yard.runtime.store.read(lambda s: ready(s, "b")) is None


def test_jobs_come_in_the_order_of_their_creation_even_when_the_clock_goes_back(yard: Any) -> None:
    first = put(yard)
    yard.clock.jump(-3600)
    second = put(yard, "another lane")
    assert second.created_at < first.created_at
    assert take(yard).id == first.id
    assert take(yard).id == second.id


def test_a_job_starts_no_earlier_than_the_one_before_it_ended_even_when_the_clock_goes_back(
    yard: Any,
) -> None:
    put(yard)
    second = put(yard)
    first = take(yard)
    yard.clock.advance(10)
    ended = settle(yard, first, succeed)
    yard.clock.jump(-3600)
    assert take(yard).id == second.id
    assert yard.job(second.id).started_at >= ended.ended_at


def test_a_full_queue_refuses_and_keeps_nothing(yard: Any) -> None:
    put(yard)
    refused = yard.new_job("other")
    with pytest.raises(RateLimited, match="1 jobs wait"):
        yard.runtime.store.transact(lambda tx: enqueue(tx, refused, 1))
    assert yard.runtime.store.read(lambda s: s.count(Job, "by_entity", "acme")) == 1


def test_an_equal_request_is_the_same_job_until_that_has_ended(yard: Any) -> None:
    first = put(yard, fingerprint="same")
    assert put(yard, fingerprint="same").id == first.id
    assert put(yard, fingerprint="other").id != first.id
    running = take(yard)
    assert put(yard, fingerprint="same").id == first.id
    settle(yard, running, succeed)
    again = put(yard, fingerprint="same")
    assert again.id != first.id
    assert put(yard, fingerprint="same").id == again.id


# ---- the fence ---------------------------------------------------------------------------------------------------


def writes(yard: Any, token: Claim) -> dict[str, Any]:
    event, now = NewEvent(yard.runtime.ids(), "gradient_step", {}, 99), yard.clock.now()
    return {
        "heartbeat": lambda tx: heartbeat(tx, token, now),
        "event": lambda tx: record_events(tx, token, [event], now),
        "state": lambda tx: save_resume(tx, token, 99, {}, now),
        "end": lambda tx: succeed(tx, JOB_TYPES, require_claim(tx, token), "id", now),
        "requeue": lambda tx: requeue(tx, JOB_TYPES, require_claim(tx, token), "id", now),
    }


@pytest.mark.parametrize("gone", ["requeued", "claimed again", "ended", "erased"])
@pytest.mark.parametrize("write", ["heartbeat", "event", "state", "end", "requeue"])
def test_every_write_of_a_worker_is_refused_once_its_job_is_no_longer_its_own(yard: Any, gone: str, write: str) -> None:
    put(yard)
    job = take(yard)
    token = token_of(yard, job)
    if gone == "erased":
        yard.runtime.store.transact(lambda tx: (tx.remove(Job, job.id), tx.remove(JobProgress, job.id)))
    else:
        settle(yard, job, succeed if gone == "ended" else requeue)
    if gone == "claimed again":
        take(yard)
    kept = None if gone == "erased" else (yard.job(job.id), yard.progress(job.id))
    with pytest.raises(LeaseLost):
        yard.runtime.store.transact(writes(yard, token)[write])
    assert kept is None or (yard.job(job.id), yard.progress(job.id)) == kept


def test_each_claim_has_its_own_epoch_and_counts_as_an_attempt(yard: Any) -> None:
    put(yard)
    first = take(yard)
    tokens = [token_of(yard, first)]
    settle(yard, first, requeue)
    second = take(yard)
    tokens.append(token_of(yard, second))
    assert ([token.epoch for token in tokens], second.attempts) == ([1, 2], 2)
    assert second.started_at == first.started_at


def test_what_a_worker_writes_most_leaves_the_job_s_own_record_alone(yard: Any) -> None:
    put(yard)
    job = take(yard)
    token, now = token_of(yard, job), yard.clock.now()
    beats = yard.runtime.store.transact(lambda tx: heartbeat(tx, token, now)).beat
    step(yard, job, 1)
    assert (beats, yard.job(job.id)) == (1, job)


# ---- events ------------------------------------------------------------------------------------------------------


def test_events_have_a_dense_seq_and_commit_with_the_job_s_progress(yard: Any) -> None:
    put(yard)
    job = take(yard)
    for number in (1, 2, 3):
        after = step(yard, job, number)
        assert (after.last_seq, after.step) == (number, number)
    settle(yard, job, succeed)
    assert [event.seq for event in yard.events(job.id)] == [1, 2, 3, 4]
    assert yard.progress(job.id).last_seq == 4


def test_a_batch_of_events_is_one_write_and_all_or_none_of_it(yard: Any) -> None:
    put(yard)
    job = take(yard)
    batch = [NewEvent(yard.runtime.ids(), "gradient_step", {"loss": 1.0}, number) for number in (1, 2)]
    token, now = token_of(yard, job), yard.clock.now()
    after = yard.runtime.store.transact(lambda tx: record_events(tx, token, batch, now, total=7))
    assert (after.last_seq, after.step, after.total) == (2, 2, 7)
    doubled = [NewEvent("id", "gradient_step", {}, 3), NewEvent("id", "gradient_step", {}, 4)]
    with pytest.raises(Exception, match="JobEvent"):
        yard.runtime.store.transact(lambda tx: record_events(tx, token, doubled, now))
    assert yard.story(job.id) == [("gradient_step", 1), ("gradient_step", 2)]


def test_a_step_that_runs_again_keeps_its_id_and_place_and_its_old_data_are_kept_aside(yard: Any) -> None:
    put(yard)
    job = take(yard)
    for number in (1, 2):
        step(yard, job, number, loss=float(number))
    before = yard.events(job.id)
    settle(yard, job, requeue)
    step(yard, again := take(yard), 2, loss=20.0)
    step(yard, again, 3, loss=30.0)
    after = yard.events(job.id)
    assert [(event.id, event.seq, event.created_at) for event in after[:2]] == [
        (event.id, event.seq, event.created_at) for event in before
    ]
    assert [event.data["loss"] for event in after] == [1.0, 20.0, 30.0]
    step(yard, again, 2, loss=21.0)
    (old,) = yard.runtime.store.read(lambda s: s.page(SupersededEvent, "by_event", before[1].id))
    assert (old.epoch, old.data) == (1, {"loss": 2.0})


def test_the_times_of_a_job_never_go_back(yard: Any) -> None:
    put(yard)
    yard.clock.advance(10)
    job = take(yard)
    yard.clock.jump(-3600)
    step(yard, job, 1)
    yard.clock.advance(1)
    step(yard, job, 2)
    done = settle(yard, job, succeed)
    times = [done.created_at, done.started_at, *(event.created_at for event in yard.events(job.id)), done.ended_at]
    assert times == sorted(times)


# ---- ends --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "ended", "failed"),
    [
        (JobKind.SFT, "training_ended", "training_failed"),
        (JobKind.RL, "training_ended", "training_failed"),
        (JobKind.EVALUATE, "evaluation_ended", "evaluation_failed"),
        (JobKind.RESCORE, "evaluation_ended", "evaluation_failed"),
    ],
)
def test_the_last_event_names_how_a_job_of_each_kind_ended(yard: Any, kind: str, ended: str, failed: str) -> None:
    for lane, how, more in (("a", succeed, ()), ("b", fail, ("why",)), ("c", cancel, ("me",))):
        put(yard, lane, kind=kind)
        settle(yard, take(yard), how, *more)
    jobs = yard.runtime.store.read(lambda s: s.page(Job, "by_entity", "acme"))
    last = [yard.events(job.id)[-1] for job in jobs]
    assert [event.type for event in last] == [ended, failed, failed]
    assert [dict(event.data) for event in last] == [{}, {"error_message": "why"}, {"error_message": "cancelled by me"}]
    assert [job.error_message for job in jobs] == [None, "why", "cancelled by me"]
    assert all(job.ended_at is not None for job in jobs)


@pytest.mark.parametrize("status", sorted(ENDED))
def test_an_ended_job_ends_no_second_time(yard: Any, status: JobStatus) -> None:
    put(yard)
    job = take(yard)
    now = yard.clock.now()
    yard.runtime.store.transact(lambda tx: end(tx, JOB_TYPES, tx.get(Job, job.id), status, NewEvent("e", "over"), now))
    for how, more in ((succeed, ()), (fail, ("why",)), (cancel, ("me",)), (requeue, ())):
        with pytest.raises(Conflict):
            settle(yard, job, how, *more)
    assert yard.story(job.id) == [("over", 0)]


# ---- cancelling --------------------------------------------------------------------------------------------------


def ask_to_cancel(yard: Any, job: Job, by: str = "me") -> Job:
    event_id, now = yard.runtime.ids(), yard.clock.now()
    return yard.runtime.store.transact(lambda tx: request_cancel(tx, JOB_TYPES, job.id, event_id, by, now))


def test_a_job_that_waits_is_cancelled_at_once_and_the_lane_continues(yard: Any) -> None:
    first, second, third = (put(yard) for _ in range(3))
    assert ask_to_cancel(yard, second).status is JobStatus.CANCELLED
    assert places(yard, first, third) == [QueueState.READY, QueueState.WAITING]
    assert ask_to_cancel(yard, first).status is JobStatus.CANCELLED
    assert places(yard, third) == [QueueState.READY]
    assert yard.story(first.id) == yard.story(second.id) == [("training_failed", 0)]


def test_cancelling_marks_a_running_job_and_its_worker_stops_at_its_next_write(yard: Any) -> None:
    put(yard)
    job = take(yard)
    assert ask_to_cancel(yard, job).status is JobStatus.RUNNING
    assert step(yard, job, 1).cancelled_by == "me"


@pytest.mark.parametrize("how", [requeue, fail, crash])
def test_a_job_marked_for_cancellation_ends_as_cancelled_however_its_worker_leaves_it(yard: Any, how: Any) -> None:
    put(yard)
    job = take(yard)
    ask_to_cancel(yard, job)
    now = yard.clock.now()
    rest = {requeue: (now,), fail: ("why", now), crash: (now, 1, WorkerLoss())}[how]
    done = yard.runtime.store.transact(lambda tx: how(tx, JOB_TYPES, tx.get(Job, job.id), "e", *rest))
    assert (done.status, done.error_message) == (JobStatus.CANCELLED, "cancelled by me")
    assert yard.story(job.id) == [("training_failed", 0)]


def test_cancelling_again_changes_nothing_and_the_first_one_counts(yard: Any) -> None:
    put(yard)
    job = take(yard)
    ask_to_cancel(yard, job, "one")
    ask_to_cancel(yard, job, "two")
    assert yard.progress(job.id).cancelled_by == "one"
    done = settle(yard, job, requeue)
    assert done.error_message == "cancelled by one"
    assert ask_to_cancel(yard, job, "three") == yard.job(job.id) == done


def test_cancelling_after_the_end_changes_nothing(yard: Any) -> None:
    put(yard)
    done = settle(yard, take(yard), succeed)
    assert ask_to_cancel(yard, done) == done


# ---- paused and resumed ----------------------------------------------------------------------------------------


def pause(yard: Any, job: Job) -> Job:
    return yard.runtime.store.transact(lambda tx: request_pause(tx, job.id, "me"))


def resume(yard: Any, job: Job) -> Job | None:
    return yard.runtime.store.transact(lambda tx: resume_paused(tx, tx.get(Job, job.id)))


def test_a_job_that_waits_is_paused_at_once_and_the_lane_continues(yard: Any) -> None:
    first, second, third = (put(yard) for _ in range(3))
    pause(yard, second)
    pause(yard, first)
    assert places(yard, first, second, third) == [QueueState.PAUSED, QueueState.PAUSED, QueueState.READY]
    assert pause(yard, first) == yard.job(first.id)
    resume(yard, first)
    assert places(yard, first, second, third) == [QueueState.WAITING, QueueState.PAUSED, QueueState.READY]
    settle(yard, take(yard), succeed)
    assert places(yard, first, second) == [QueueState.READY, QueueState.PAUSED]
    assert resume(yard, yard.job(third.id)) is None
    with pytest.raises(Conflict):
        pause(yard, third)


@pytest.mark.parametrize("how", [requeue, crash])
def test_a_running_job_is_paused_however_its_worker_leaves_it(yard: Any, how: Any) -> None:
    put(yard)
    behind = put(yard)
    job = take(yard)
    assert pause(yard, job).status is JobStatus.RUNNING
    assert step(yard, job, 1).leaving
    now = yard.clock.now()
    rest = (now,) if how is requeue else (now, 3, WorkerLoss())
    yard.runtime.store.transact(lambda tx: how(tx, JOB_TYPES, tx.get(Job, job.id), "e", *rest))
    assert places(yard, job, behind) == [QueueState.PAUSED, QueueState.READY]
    assert resume(yard, job).status is JobStatus.QUEUED


def test_a_job_that_has_not_stopped_yet_is_resumed_in_place(yard: Any) -> None:
    put(yard)
    job = take(yard)
    pause(yard, job)
    assert resume(yard, job).place is QueueState.CLAIMED
    assert not step(yard, job, 1).leaving


def test_a_paused_job_is_cancelled(yard: Any) -> None:
    first, second = put(yard), put(yard)
    pause(yard, first)
    assert ask_to_cancel(yard, first).status is JobStatus.CANCELLED
    assert places(yard, first, second) == [QueueState.DONE, QueueState.READY]


# ---- lost workers ------------------------------------------------------------------------------------------------


def lose(yard: Any, job: Job, most: int = 3) -> Job | None:
    seen, event_id, now = yard.progress(job.id), yard.runtime.ids(), yard.clock.now()
    return yard.runtime.store.transact(lambda tx: expire(tx, JOB_TYPES, seen, event_id, now, most))


def test_a_job_that_loses_its_worker_again_and_again_without_a_step_fails(yard: Any) -> None:
    put(yard)
    for _ in range(2):
        lost = lose(yard, take(yard))
        assert lost is not None
        assert lost.status is JobStatus.QUEUED
    lost = lose(yard, take(yard))
    assert lost is not None
    assert lost.status is JobStatus.FAILED
    assert "lost its worker 3 times without any progress" in (lost.error_message or "")


def test_a_new_step_forgives_earlier_crashes_and_a_repeated_one_does_not(yard: Any) -> None:
    put(yard)
    for _ in range(2):
        lose(yard, take(yard))
    job = take(yard)
    assert step(yard, job, 1).crashes == 0
    lose(yard, job)
    assert yard.progress(job.id).crashes == 0
    for _ in range(2):
        lose(yard, take(yard))
    assert step(yard, take(yard), 1).crashes == 2


def lose_process(yard: Any, job: Job, preempted: bool, alone: bool = True) -> Job:
    event_id, now, loss = yard.runtime.ids(), yard.clock.now(), WorkerLoss("it fell over", preempted, alone)
    found = yard.runtime.store.transact(lambda tx: end_attempt(tx, JOB_TYPES, job, event_id, now, 3, loss))
    assert found is not None
    return found


def repeat_and_lose(yard: Any, preempted: bool) -> Job:
    job = take(yard)
    step(yard, job, 1)
    return lose_process(yard, job, preempted)


def test_a_job_whose_process_ends_by_itself_after_the_same_step_again_and_again_fails(yard: Any) -> None:
    put(yard)
    statuses = [repeat_and_lose(yard, preempted=False).status for _ in range(4)]
    assert statuses == [JobStatus.QUEUED] * 3 + [JobStatus.FAILED]


def test_a_job_that_is_killed_from_outside_again_and_again_fails_only_after_very_many_kills(yard: Any) -> None:
    """It makes the same steps again each time, because no saved state was reached."""
    put(yard)
    repeat_and_lose(yard, preempted=True)
    statuses = [repeat_and_lose(yard, preempted=True).status for _ in range(3 * LOSSES_PER_CRASH)]
    assert statuses == [JobStatus.QUEUED] * (3 * LOSSES_PER_CRASH - 1) + [JobStatus.FAILED]


def test_a_claim_that_stored_something_new_is_not_charged_however_it_ends(yard: Any) -> None:
    job = put(yard)
    for number in range(1, 6):
        step(yard, take(yard), number)
        lose_process(yard, yard.job(job.id), preempted=False)
    assert (yard.job(job.id).status, yard.progress(job.id).crashes) == (JobStatus.QUEUED, 0)


def test_a_later_saved_state_forgives_earlier_crashes_and_an_equal_one_does_not(yard: Any) -> None:
    put(yard)
    now = yard.clock.now()
    for step_number, crashes in ((2, 0), (2, 1), (4, 0)):
        job = take(yard)
        token = token_of(yard, job)
        saved = yard.runtime.store.transact(lambda tx, n=step_number, t=token: save_resume(tx, t, n, {}, now))
        assert saved.crashes == crashes
        lose(yard, job)
        if crashes == 0:
            lose(yard, take(yard))


def test_a_job_is_not_taken_away_if_it_moved_since_it_was_looked_at(yard: Any) -> None:
    put(yard)
    job = take(yard)
    seen, now = yard.progress(job.id), yard.clock.now()
    yard.runtime.store.transact(lambda tx: heartbeat(tx, claim_of(seen), now))
    assert yard.runtime.store.transact(lambda tx: expire(tx, JOB_TYPES, seen, "e", now, 3)) is None
    settle(yard, job, succeed)
    for stale in (seen, yard.progress(job.id), attrs.evolve(seen, job_id="gone")):
        assert yard.runtime.store.transact(lambda tx, stale=stale: expire(tx, JOB_TYPES, stale, "e", now, 3)) is None


def test_a_job_that_was_taken_away_is_again_the_first_of_its_lane(yard: Any) -> None:
    first, second = put(yard), put(yard)
    lose(yard, take(yard))
    assert places(yard, first, second) == [QueueState.READY, QueueState.WAITING]
    assert take(yard).id == first.id


def test_jobs_in_the_queue_are_counted_only_where_there_may_be_too_many(yard: Any) -> None:
    counted = []

    class Counting:
        def __init__(self, tx: Any) -> None:
            self._tx = tx

        def __getattr__(self, name: str) -> Any:
            return getattr(self._tx, name)

        def count(self, *given: Any) -> int:
            counted.append(given)
            return int(self._tx.count(*given))

    def queue(name: str, most: int) -> Job:
        job = yard.new_job(name)
        return yard.runtime.store.transact(lambda tx: enqueue(Counting(tx), job, most))

    for name in ("a", "b"):
        queue(name, 3)
    assert not counted
    queue("c", 3)
    with pytest.raises(RateLimited):
        queue("d", 3)
    take(yard, "b")
    assert queue("e", 3).lane == "e"
    assert counted
