"""Requests are mirrored in the background, on a purse that is never overdrawn, and nobody waits for them."""

from decimal import Decimal
from typing import Any

import pytest

from modelyard import Platform, open_platform
from modelyard.domain.record import KEY
from modelyard.domain.usage import LedgerEntry
from modelyard.errors import InvalidInput
from modelyard.parts.rollouts.arms import MOST_MIRRORED, ProcessRollouts, RolloutCapture
from modelyard.parts.rollouts.mirror import drain
from modelyard.parts.rollouts.records import RolloutAnswer, RolloutCursor, RolloutState, Side, StagedRollout
from modelyard.platform.paging import iter_index
from modelyard.stores import MemoryStore
from rolled_out import ALIAS, NAME, trained


@pytest.fixture
def desk(platform: Platform) -> Platform:
    trained(platform)
    return platform


def start(desk: Platform, shadow: dict[str, Any], **options: Any) -> StagedRollout:
    return desk.rollouts.start(NAME, 1, shadow=shadow, **options)


def ask(desk: Platform, count: int) -> list[str]:
    asked = {"model": ALIAS, "messages": "hello", "max_tokens": 2}
    return [desk.chat.complete(**asked, user=f"user {at}").id for at in range(count)]


def mirrored_cost(desk: Platform, rollout: StagedRollout) -> Decimal:
    ids = {one.id for one in desk.rollouts.answers(rollout.id) if one.shadow}
    ledger = desk._runtime.store.read(lambda snapshot: [*iter_index(snapshot, LedgerEntry, "by_entity", "local")])
    return sum((one.cost for one in ledger if one.id in ids), Decimal(0))


def spent(desk: Platform, rollout: StagedRollout) -> Decimal:
    return desk._runtime.store.read(lambda snapshot: snapshot.get(RolloutCursor, rollout.id)).spent


def test_requests_are_mirrored_until_there_are_enough_and_then_users_come(desk: Platform) -> None:
    rollout = start(desk, {"answers": 5, "share": 1.0})
    assert (rollout.state, rollout.stage) == (RolloutState.SHADOW, -1)
    asked = ask(desk, 5)
    assert {one.side for one in desk.rollouts.answers(rollout.id)} == {Side.BASELINE}
    drain(desk._runtime)
    shadows = [one for one in desk.rollouts.answers(rollout.id) if one.shadow]
    assert [(one.side, one.step, one.stage) for one in shadows] == [(Side.CANDIDATE, 1, -1)] * 5
    assert not {one.id for one in shadows} & {*asked}
    assert spent(desk, rollout) == mirrored_cost(desk, rollout) > 0
    found = desk.rollouts.look(rollout.id)
    assert (found.state, found.stage) == (RolloutState.CANARY, 0)
    ask(desk, 3)
    assert not desk._runtime.cache.slot(ProcessRollouts).mirrored


def test_no_more_than_the_purse_is_spent_and_the_rollout_says_so(desk: Platform) -> None:
    one = start(desk, {"answers": 1, "share": 1.0})
    ask(desk, 1)
    drain(desk._runtime)
    price = spent(desk, one)
    desk.rollouts.stop(one.id)
    purse = price * Decimal("2.5")
    rollout = start(desk, {"answers": 50, "share": 1.0, "purse": purse})
    ask(desk, 10)
    drain(desk._runtime)
    assert 0 < mirrored_cost(desk, rollout) <= spent(desk, rollout) <= purse
    found = desk.rollouts.get(rollout.id)
    assert (found.state, "USD are left in the purse" in found.reason) == (RolloutState.STOPPED, True)


def test_what_was_reserved_before_a_crash_stays_spent(desk: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    rollout = start(desk, {"answers": 50, "share": 1.0})
    ask(desk, 1)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("modelyard.parts.rollouts.mirror.run", killed)
    with pytest.raises(KeyboardInterrupt):
        drain(desk._runtime)
    assert spent(desk, rollout) > 0 == mirrored_cost(desk, rollout)


def test_a_caller_waits_for_nothing_and_a_queue_is_bounded(desk: Platform) -> None:
    start(desk, {"answers": 500, "share": 1.0})
    ask(desk, MOST_MIRRORED + 3)
    assert len(desk._runtime.cache.slot(ProcessRollouts).mirrored) == MOST_MIRRORED


def test_only_a_share_is_mirrored(desk: Platform) -> None:
    start(desk, {"answers": 500, "share": 0.2})
    ask(desk, 60)
    assert 1 <= len(desk._runtime.cache.slot(ProcessRollouts).mirrored) <= 30


@pytest.mark.parametrize(
    ("shadow", "match"),
    [
        ({"answers": 0}, "answers: must be a whole number"),
        ({"share": 2}, "shadow.share: must be more than 0"),
        ({"purse": "much"}, "shadow.purse: must be an amount in USD"),
        ({"often": True}, "shadow: must be such as"),
    ],
)
def test_what_cannot_be_meant_is_refused(shadow: Any, match: str) -> None:
    with open_platform() as platform, pytest.raises(InvalidInput, match=match):
        platform.rollouts.start(NAME, 1, shadow=shadow)


def test_a_mirrored_request_gives_way_to_those_that_are_answered(
    desk: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout = start(desk, {"answers": 5, "share": 1.0})
    ask(desk, 1)
    running: Any = desk._runtime.cache.running
    running["a request"], waited = object(), list[int]()

    def answered(_: float) -> None:
        waited.append(sum(one.shadow for one in desk.rollouts.answers(rollout.id)))
        running.pop("a request")

    monkeypatch.setattr("modelyard.parts.rollouts.mirror.sleep", answered)
    drain(desk._runtime)
    assert waited == [0]
    assert [one.shadow for one in desk.rollouts.answers(rollout.id)] == [False, True]


def test_a_mirrored_request_does_not_give_way_for_ever(desk: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    rollout = start(desk, {"answers": 5, "share": 1.0})
    ask(desk, 1)
    running: Any = desk._runtime.cache.running
    running["a request"] = object()
    monkeypatch.setattr("modelyard.parts.rollouts.mirror.GIVES_WAY", 0.01)
    drain(desk._runtime)
    del running["a request"]
    assert [one.shadow for one in desk.rollouts.answers(rollout.id)] == [False, True]


def test_neither_an_answer_nor_its_mirror_waits_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, transact = list[bool](), MemoryStore.transact

    def noting(store: MemoryStore, step: Any, durable: bool = True) -> Any:
        waits.append(durable)
        return transact(store, step, durable)

    with open_platform() as platform:
        trained(platform)
        rollout = start(platform, {"answers": 5, "share": 1.0})
        monkeypatch.setattr(MemoryStore, "transact", noting)
        ask(platform, 1)
        assert waits == [False]
        drain(platform._runtime)
        assert [one.shadow for one in platform.rollouts.answers(rollout.id)] == [False, True]
    assert len(waits) > 3
    assert not any(waits[:4])


def test_a_rollout_that_is_deleted_while_a_request_is_answered_keeps_nothing_of_it(
    desk: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout = start(desk, {"answers": 5, "share": 1.0})
    kept = RolloutCapture.__call__

    def deleted(capture: RolloutCapture, *answered: Any) -> Any:
        desk.rollouts.stop(rollout.id)
        desk.rollouts.delete(rollout.id)
        return kept(capture, *answered)

    monkeypatch.setattr(RolloutCapture, "__call__", deleted)
    (asked,) = ask(desk, 1)
    read = desk._runtime.store.read
    assert read(lambda snapshot: snapshot.find(LedgerEntry, KEY, asked)) is not None
    assert read(lambda snapshot: snapshot.find(RolloutAnswer, KEY, asked)) is None
