"""A run whose worker is lost after any commit, or in the middle of one, ends with the same weights and answers."""

import attrs
import pytest

from driven_runs import Driven, course, opened
from modelyard.artifacts.memory import MemoryArtifacts
from modelyard.domain.schema import RECORDS
from modelyard.parts.tinker import job
from modelyard.parts.tinker.records import FutureStatus
from modelyard.protocols import Store
from modelyard.stores.memory import MemoryStore


class Lost(BaseException):
    """The worker's process is no more."""


@attrs.define
class LosingStore:
    """Loses its process before or after the commit of a number."""

    store: Store
    at: int
    after: bool
    commits: int = 0
    dead: bool = False

    def transact(self, step, durable=True):  # type: ignore[no-untyped-def]
        if self.dead:
            raise Lost
        self.commits += 1
        self.dead = self.commits == self.at
        if self.dead and not self.after:
            raise Lost
        outcome = self.store.transact(step, durable)
        if self.dead:
            raise Lost
        return outcome

    def __getattr__(self, name: str) -> object:
        if self.dead and name in ("read", "subscribe"):
            raise Lost
        return getattr(self.store, name)


def run_through(at: int, after: bool) -> tuple[bool, list[object], str, object]:
    """Train with a worker that is lost, and then with another. Returns whether the first was lost, and what came."""
    store, artifacts = MemoryStore(RECORDS), MemoryArtifacts()
    losing = LosingStore(store, at, after)
    with opened(store, artifacts) as platform:
        driven = Driven(platform)
        driven.begin()
        futures = course(driven, ("one", "two", "three", "four"))
        before = opened(losing, artifacts, clock=platform.clock)  # type: ignore[arg-type]
        try:
            before.worker().run_until_idle()
        except Lost:
            platform.clock.advance(1)
        lost, losing.dead = losing.dead, False
        driven.work()
        platform.clock.advance(31)
        driven.work()
        answers = driven.answers(*futures)
        assert [one.status for one in answers] == [FutureStatus.DONE] * len(futures)
        shown = [dict(one.result) or dict(one.answer) for one in answers]
        report = platform.remove_orphans(grace=0.0)
        assert report.missing == ()
        return lost, shown, driven.digest("end"), platform.compat.training_runs.get(driven.run).steps


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_the_weights_and_the_answers_are_the_same(after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "STEPS_PER_STATE", 2)
    lost, shown, digest, steps = run_through(0, after)
    assert not lost
    paths = [one.get("path") for one in shown]
    at = 1
    while True:
        lost, again, other, counted = run_through(at, after)
        if not lost:
            break
        assert (other, counted) == (digest, steps), at
        assert [one for one in again if "path" not in one] == [one for one in shown if "path" not in one], at
        at += 1
    assert paths[-1]
    assert at > 12


def test_two_platforms_take_turns_and_neither_uses_what_the_other_has_outdated() -> None:
    store, artifacts = MemoryStore(RECORDS), MemoryArtifacts()
    with opened(store, artifacts) as one, opened(store, artifacts, clock=one.clock) as other:
        driven = Driven(one)
        driven.begin()
        for number, text in enumerate(("one", "two", "three")):
            driven.learn(2 * number + 1, text)
            (one, other)[number % 2].worker().run_until_idle()
            driven.step(2 * number + 2)
            (one, other)[(number + 1) % 2].worker().run_until_idle()
        driven.save(7, "end")
        other.worker().run_until_idle()
        ended = driven.digest("end")
    with opened() as platform:
        driven = Driven(platform)
        driven.begin()
        course(driven)
        driven.work()
        assert driven.digest("end") == ended
