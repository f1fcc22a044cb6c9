"""A program that is killed within rollouts (`worker_process.Request.program`): it goes on from what is stored.

Three rollouts follow each other: one is mirrored first and promoted, one is pointed back once all users have it, one
is stopped by hand while some have it.
"""

from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from moments import name_of, tell

from modelyard import NotWorse, Platform, open_platform
from modelyard.parts.rollouts.mirror import drain
from modelyard.parts.rollouts.records import RolloutState, StagedRollout, place_of
from modelyard.testing.clock import ManualClock

NAME = "desk/support"
SCORER = {"says": {"type": "regular_expression", "pattern": "."}}
SHADOW = {"answers": 2, "share": 1.0, "purse": "0.01", "scorer": SCORER}
ENOUGH, SURE = (NotWorse("thumbs", margin=margin, confidence=0.5) for margin in (0.8, 0.4))
ENDS: dict[str, Any] = {
    "promoted": {"guard": ENOUGH, "step": 1, "least": 1, "shadow": SHADOW},
    "rolled_back": {"guard": SURE, "step": 0, "least": 8},
    "stopped": {"guard": SURE, "step": 0},
}


def prepare(platform: Platform) -> None:
    """Make a model with steps 0 and 1, whose alias points to step 0."""
    platform.models.create("support", project="desk", base_model="tabular-mini")
    rows = [{"messages": [{"role": "user", "content": "ping"}, {"role": "assistant", "content": "pong"}]}] * 4
    platform.training.sft(NAME, rows, epochs=1)
    platform.worker().run_until_idle()
    platform.models.promote(NAME, 0)


class ChangesWatched:
    """A store whose moments are also the changes of rollouts: `watch 1 inside` is before a rollout has all users."""

    def __init__(self, store: Any) -> None:
        self._store, self._moments = store, store._moments
        self.known: dict[str, tuple[str, int]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def transact(self, step: Any, durable: bool = True) -> Any:
        named = ""

        def watched(tx: Any) -> Any:
            nonlocal named
            result = step(tx)
            found = result[0] if isinstance(result, tuple) else result
            if isinstance(found, StagedRollout) and self.known.get(found.id) != (found.state, found.stage):
                self.known[found.id] = found.state, found.stage
                self._moments.named = named = f"{found.state} {found.stage}"
                self._moments.at(f"{named} inside")
            return result

        watched.__qualname__ = name_of(step)
        result = self._store.transact(watched, durable)
        if named:
            self._moments.named = named
            self._moments.at(f"{named} after")
        return result


def run(store: Any, artifacts: Any, started: int) -> None:
    """Go on until the last rollout has ended. `started` is how many programs were before this one."""
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=1 + started))
    watched: Any = ChangesWatched(store)
    with open_platform(store=watched, artifacts=artifacts, clock=clock, randomness=bytes) as platform:
        watched.known |= {one.id: (one.state, one.stage) for one in platform.rollouts.list()}
        for at, (end, options) in enumerate(ENDS.items()):
            known = [*platform.rollouts.list()][at:]
            one = known[0] if known else platform.rollouts.start(NAME, canary=[0.5, 1], **options)
            while not one.state.ended:
                one = live(platform, one, end)
                clock.advance(1.0)


def live(platform: Platform, one: StagedRollout, end: str) -> StagedRollout:
    """Let a user ask and say what they think, and look: of each arm in turn."""
    rollouts = platform.rollouts
    asked = sum(1 for _ in rollouts.answers(one.id))
    if end == "stopped" and asked == 2:
        return rollouts.stop(one.id)
    names = (f"{asked} {number}" for number in count())
    user = next(name for name in names if (place_of(one.user_digest(f"user {name}")) < 0.5) is (asked % 2 == 0))
    sent = platform.chat.complete(model=f"{NAME}:prod", messages="hello", user=user, max_tokens=2)
    tell("answered", one.id, sent.id)
    if one.state is RolloutState.SHADOW:
        drain(platform._runtime)
        return rollouts.look(one.id)
    good = one.state is not RolloutState.WATCH or end == "promoted"
    tell("scored", sent.id, rollouts.score(sent.id, good).value)
    return rollouts.look(one.id)
