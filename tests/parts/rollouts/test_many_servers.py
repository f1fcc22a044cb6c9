"""Two servers and two workers on one store: one user stays on one arm, and what one finds the other does."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet_site import Fleet
from modelyard import NotWorse
from modelyard.parts.rollouts.records import RolloutState, Side
from polling import until
from rolled_out import ALIAS, NAME
from sampled import in_campaign

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]

USERS = range(40)
ROW = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "green"}]}
GUARD = NotWorse("thumbs", margin=0.4, confidence=0.5)


@pytest.fixture(params=["postgresql", in_campaign("sqlite")])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    store = request.getfixturevalue("yard_address") if request.param == "postgresql" else str(tmp_path / "yard.db")
    with Fleet(store, tmp_path / "files", size=2, ahead=0.0) as running:
        running.platform.models.create("support", project="desk", base_model="tabular-mini")
        running.platform.training.sft(NAME, [ROW] * 40).wait(timeout=120)
        running.platform.models.promote(NAME, 0)
        yield running


class Users:
    """Users who ask both servers in turn. `seen` are the arms of each, in order."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._secret = fleet, {"Authorization": f"Bearer {fleet.platform.keys.create().secret}"}
        self.seen: dict[str, list[Side]] = {}
        self._asked = 0

    def ask(self, user: str) -> tuple[str, Side]:
        self._asked += 1
        body: Any = {"model": f"local/{ALIAS}", "messages": [{"role": "user", "content": "hello"}], "temperature": 0}
        body |= {"user": user, "max_tokens": 5}
        reply = self._fleet.send(self._asked, "POST", "/v1/chat/completions", body, **self._secret).json
        side = Side.CANDIDATE if reply["choices"][0]["message"]["content"] == "green" else Side.BASELINE
        self.seen.setdefault(user, []).append(side)
        return reply["id"], side

    def score(self, answer: str, good: bool) -> None:
        """Say what a user thinks, to the server that did not answer."""
        path = f"/v1/rollouts/answers/{answer}/scores/thumbs"
        assert self._fleet.send(self._asked + 1, "PUT", path, {"value": good}, **self._secret).status == 200


def test_one_user_has_one_arm_on_all_servers_and_a_breach_is_everywhere_at_once(fleet: Fleet) -> None:
    rollouts, users = fleet.platform.rollouts, Users(fleet)
    rollout = rollouts.start(NAME, 1, canary=[0.3, 0.6, 1.0], guard=GUARD, least=12)
    for user in USERS:
        users.ask(f"user {user}")
        users.ask(f"user {user}")
    assert {tuple({*sides}) for sides in users.seen.values()} == {(Side.BASELINE,), (Side.CANDIDATE,)}
    stages, number = set[int](), len(USERS)
    while (now := rollouts.get(rollout.id)).state is RolloutState.CANARY:
        stages.add(now.stage)
        answer, _ = users.ask(f"user {(number := number + 1)}")
        users.score(answer, True)
        users.ask(f"user {number % len(USERS)}")
    assert stages == {0, 1}
    assert now.state is RolloutState.WATCH
    for user in USERS:
        users.ask(f"user {user}")
    for sides in users.seen.values():
        assert sides == sorted(sides, key=[Side.BASELINE, Side.CANDIDATE].index), "who has the new step keeps it"
    kept = list(rollouts.answers(rollout.id))
    assert len(kept) == sum(map(len, users.seen.values())), "each is kept once"
    number = 10_000
    while (now := rollouts.get(rollout.id)).state is RolloutState.WATCH:
        answer, side = users.ask(f"user {(number := number + 1)}")
        users.score(answer, side is Side.BASELINE)
    assert now.state is RolloutState.ROLLED_BACK
    assert [one.step for one in fleet.platform.models.aliases(NAME)] == [0]
    until(lambda: [users.ask("ann")[1] for _ in range(2)] == [Side.BASELINE] * 2)
    assert {users.ask(f"user {user}")[1] for user in USERS} == {Side.BASELINE}
    assert [one.change.value for one in fleet.platform.models.promotions(NAME)] == [
        *("promoted", "promoted", "rolled_back")
    ]
