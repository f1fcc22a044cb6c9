"""A program that is killed again and again within its rollouts: nothing is lost, and nothing is booked twice."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import rollout_process
from nursery import Nursery

from modelyard import Platform, open_platform
from modelyard.parts.rollouts.records import (
    UNIT,
    RolloutAnswer,
    RolloutCursor,
    RolloutScore,
    RolloutState,
    RolloutTally,
    RunningRollout,
    Side,
    StagedRollout,
)
from modelyard.platform.paging import iter_index_live
from modelyard.protocols import Snapshot
from postgres_server import PostgresServer
from sampled import in_campaign

pytestmark = [pytest.mark.crash, pytest.mark.parts]

MOMENTS = {
    "after": ("commit 1 after", "beat 1 after", "beat 4 after", "beat 5 after", "commit 2 after", "commit 3 after"),
    "inside": ("beat 2 inside", "beat 1 inside", "commit 3 inside", "commit 1 inside", "commit 2 inside"),
}
"""When a program dies: the first at the first moment, its successor at the second, and so on, round and round. `beat`
is the booking of an answer, and then what is reserved for its mirrored request, booked, settled and scored."""
CHANGES = {"shadow -1", "canary 0", "watch 1", "promoted 1", "rolled_back 1", "stopped 0"}
BOOKED, SCORED, LOOKED = "CompletionBooking.step", "StagedRollouts.score.<locals>.step", "_look"
KILLED = {
    "after": {BOOKED, SCORED, LOOKED, "_settle.<locals>.step", "_keep"},
    "inside": {BOOKED, SCORED, LOOKED, "_reserve"},
    "after changes": CHANGES,
    "inside changes": CHANGES,
}
"""The steps, or the changes of the state and the stage of a rollout, at which programs die, each at least once."""

Open = Callable[[], Platform]


@pytest.fixture(scope="module")
def programs() -> Iterator[Nursery]:
    with Nursery("rollout_process", "modelyard.parts.postgres.store") as made:
        yield made


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    with open_platform(folder / "yard.db") as platform:
        rollout_process.prepare(platform)
    return folder


@pytest.mark.parametrize("when", ["after", in_campaign("inside"), in_campaign("after changes"), "inside changes"])
def test_in_a_file(programs: Nursery, prepared: Path, tmp_path: Path, when: str) -> None:
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "yard.db"
    live_and_die(programs, str(path), f"{path}-artifacts", when)


@pytest.mark.parametrize("when", [in_campaign("after"), "inside", "after changes", in_campaign("inside changes")])
def test_on_postgresql(programs: Nursery, postgres: PostgresServer, tmp_path: Path, when: str) -> None:
    address = postgres.create_database()
    with open_platform(address, artifacts=tmp_path / "files") as platform:
        rollout_process.prepare(platform)
    live_and_die(programs, address, str(tmp_path / "files"), when)
    postgres.drop_database(address)


def live_and_die(programs: Nursery, path: str, artifacts: str, when: str) -> None:
    """Kill each program at the next moment, until one comes to the end."""
    moments = MOMENTS.get(when, ())
    died, sent, said = Counter[str](), dict[str, str](), dict[str, float]()
    for started in count():
        left = [f"{change} {when.split()[0]}" for change in CHANGES - {*died}]
        acts = dict.fromkeys([moments[started % len(moments)]] if moments else left, "die")
        child = programs.start(
            path, program="rollout_process", artifacts=artifacts, started=started, acts=acts, reported=True
        )
        child.hear_until("gone")
        died.update(name for (name,) in child.reported("dies"))
        sent.update({request: rollout for rollout, request in child.reported("answered")})
        said.update(dict(child.reported("scored")))
        with open_platform(path, artifacts=artifacts) as platform:
            check(platform, sent, said)
            if child.status == 0:
                break
            assert child.status == -9
            assert started < 500
    with open_platform(path, artifacts=artifacts) as platform:
        assert [one.state for one in platform.rollouts.list()] == [*rollout_process.ENDS]
        assert [one.change for one in platform.models.promotions(rollout_process.NAME)] == [
            *("promoted", "promoted", "promoted", "rolled_back")
        ]
    assert KILLED[when] <= {*died}


def check(platform: Platform, sent: dict[str, str], said: dict[str, float]) -> None:
    """What was answered and said is there, once; and what is counted, and where the alias points, follows from it."""
    runtime, every = platform._runtime, [*platform.rollouts.list()]
    booked = Counter(one.id for one in platform.usage.list())
    cost = {one.id: one.cost for one in platform.usage.list()}
    scores = [*iter_index_live(runtime, RolloutScore, "by_entity", "local")]
    assert set(booked.values()) <= {1}
    assert said.items() <= {one.answer_id: one.value for one in scores}.items()
    kept = dict[str, str]()
    for one in every:
        answers = [*platform.rollouts.answers(one.id)]
        kept |= {answer.id: one.id for answer in answers if not answer.shadow}
        assert {answer.id for answer in answers} <= {*booked}
        arms = {(answer.stage, answer.user, answer.side, answer.shadow) for answer in answers}
        assert len(arms) == len({(stage, user, shadow) for stage, user, _, shadow in arms}), "a user is on one arm"
        of_it = [score for score in scores if score.rollout_id == one.id]
        check_tallies(runtime, one, answers, of_it)
        spent = sum((cost[answer.id] for answer in answers if answer.shadow), Decimal(0))
        cursor = runtime.store.read(partial(get_of, RolloutCursor, one.id))
        assert spent <= cursor.spent <= max(one.purse, Decimal(0))
    assert sent.items() <= kept.items()
    check_alias(platform, every)


def get_of(cls: Any, key: str, snapshot: Snapshot) -> Any:
    return snapshot.get(cls, key)


def check_tallies(runtime: Any, one: StagedRollout, answers: list[RolloutAnswer], scores: list[RolloutScore]) -> None:
    """The sums are those of what was counted."""
    seen = runtime.store.read(partial(get_of, RolloutCursor, one.id)).seen
    for tally in iter_index_live(runtime, RolloutTally, "by_rollout", one.id):
        place = tally.stage, tally.side
        counted = [said for said in scores if said.counted and (said.stage, said.side) == place]
        own = [answer for answer in answers if (answer.stage, answer.side) == place and answer.seq <= seen]
        assert (tally.scores, tally.total) == (len(counted), round(sum(said.value for said in counted) * UNIT))
        assert (tally.answers, tally.cost) == (len(own), sum((answer.cost for answer in own), Decimal(0)))


def check_alias(platform: Platform, every: list[StagedRollout]) -> None:
    """It points to what the newest rollout says, and only that of one which runs is divided."""
    (alias,) = platform.models.aliases(rollout_process.NAME)
    last = every[-1] if every else None
    has_new = last is not None and last.state in (RolloutState.WATCH, RolloutState.PROMOTED)
    assert alias.step == (0 if last is None else last.step_of(Side.CANDIDATE if has_new else Side.BASELINE))
    running = [one.rollout_id for one in iter_index_live(platform._runtime, RunningRollout, "all")]
    assert running == [one.id for one in every if not one.state.ended]
    for one in every:
        assert [step.number for step in platform.rollouts.steps(one.id)] == [*range(1, one.changes + 1)]
    pinned = [one.step for one in platform.models.checkpoints(rollout_process.NAME) if one.pinned]
    assert pinned == [one.step for one in every if not one.state.ended]
