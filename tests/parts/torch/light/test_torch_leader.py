"""One caller that waits works for all: while any wait, one leads, and never two."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from modelyard.parts.torch.serving.leader import LeaderElection, Waiter
from polling import until

ENOUGH = 60.0
"""Seconds after which a wait is taken for endless."""


def follower(woken: list[str], name: str, ready: Callable[[], bool] = lambda: False, on_loop: bool = False) -> Waiter:
    return Waiter(ready, lambda: woken.append(name), on_loop)


def test_the_lead_is_taken_by_one_at_a_time() -> None:
    lead = LeaderElection()
    assert [lead.take(), lead.take(), lead.hand_over(), lead.take()] == [True, False, True, True]


def test_no_thread_follows_without_a_leader() -> None:
    lead, woken = LeaderElection(), list[str]()
    assert not lead.follow("a", follower(woken, "a"))
    assert lead.take()
    lead.hand_over()
    assert woken == []


def test_ready_waiters_are_woken_and_the_others_keep_waiting() -> None:
    lead, woken, ready = LeaderElection(), list[str](), {"a"}
    lead.take()
    for name in "abc":
        lead.follow(name, follower(woken, name, lambda name=name: name in ready and lead.claimed is False))  # type: ignore[misc]
    assert woken == ["a"]
    ready |= {"b", "c"}
    lead.notify(["b", "b", "x"])
    assert woken == ["a", "b"]
    lead.hand_over()
    assert woken == ["a", "b", "c"]


def test_a_thread_inherits_before_a_task_and_one_alone_is_woken() -> None:
    lead, woken = LeaderElection(), list[str]()
    lead.take()
    for name in ("task", "thread", "other"):
        lead.follow(name, follower(woken, name, on_loop=name == "task"))
    for expected in ("thread", "other", "task"):
        lead.hand_over()
        assert woken.pop() == expected
        assert woken == []
        assert lead.take()


def test_who_cannot_be_reached_any_more_is_passed_over() -> None:
    def closed() -> None:
        raise RuntimeError("Event loop is closed")

    lead, woken = LeaderElection(), list[str]()
    lead.take()
    lead.follow("gone", Waiter(lambda: False, closed))
    lead.follow("ready", Waiter(lambda: bool(woken), closed))
    lead.follow("here", follower(woken, "here"))
    lead.hand_over()
    assert woken == ["here"]
    assert lead.take()
    lead.notify(["ready"])


def test_the_lead_is_kept_while_something_is_unfinished() -> None:
    lead = LeaderElection()
    lead.take()
    assert not lead.hand_over(unfinished=lambda: True)
    assert not lead.take()
    assert lead.hand_over(unfinished=lambda: False)


def test_a_claim_goes_before_all_who_follow_and_the_lead_is_never_free_in_between() -> None:
    lead, woken, order = LeaderElection(), list[str](), list[str]()
    lead.take()
    lead.follow("a", follower(woken, "a"))

    def claiming() -> None:
        lead.claim()
        order.append(f"claimed, free: {lead.take()}, woken: {woken}")
        lead.hand_over()

    thread = threading.Thread(target=claiming)
    thread.start()
    until(lambda: lead.claimed)
    lead.hand_over()
    thread.join(ENOUGH)
    assert order == ["claimed, free: False, woken: []"]
    assert woken == ["a"]


@pytest.mark.parametrize("given", [True, False])
def test_a_claim_that_is_interrupted_is_withdrawn_or_handed_on(monkeypatch: pytest.MonkeyPatch, given: bool) -> None:
    lead, other = LeaderElection(), ThreadPoolExecutor(1)
    assert other.submit(lead.take).result(ENOUGH)

    def interrupted(self: threading.Event, timeout: float | None = None) -> bool:
        if given:
            other.submit(lead.hand_over).result(ENOUGH)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Event, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lead.claim()
    assert not lead.claimed
    assert lead.take() is given
    other.shutdown()


def test_who_has_handed_over_takes_nothing_from_the_next_by_doing_so_again() -> None:
    lead = LeaderElection()
    lead.take()
    lead.hand_over()
    with ThreadPoolExecutor(1) as other:
        assert other.submit(lead.take).result(ENOUGH)
        lead.hand_over()
        assert not lead.take()
        other.submit(lead.hand_over).result(ENOUGH)
    assert lead.take()


def test_threads_that_lead_follow_and_claim_all_get_through() -> None:
    lead, inside, done = LeaderElection(), [0], [0]

    def work() -> None:
        inside[0] += 1
        assert inside[0] == 1
        done[0] += 1
        inside[0] -= 1

    def reader(key: int) -> None:
        for _ in range(50):
            worked = False
            while not worked:
                woken = threading.Event()
                if lead.follow(key, Waiter(lambda: False, woken.set)):
                    assert woken.wait(ENOUGH)
                elif lead.take():
                    work()
                    worked = lead.hand_over()

    def claimer(_: int) -> None:
        for _ in range(50):
            lead.claim()
            work()
            lead.hand_over()

    with ThreadPoolExecutor(16) as threads:
        work_ = [threads.submit(reader if key % 4 else claimer, key) for key in range(16)]
        assert [one.result(ENOUGH) for one in work_] == [None] * 16
    assert done == [16 * 50]
