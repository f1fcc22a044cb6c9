"""Episodes of every kind: no token is trained that was not sampled, and none with other numbers than those of then."""

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from episode_agents import TEMPLATES, NotingModel, check_episode, play
from example_counts import examples
from http_client import Client, client_of
from modelyard import open_platform
from modelyard.engines.tabular.trainer import TabularTrainer
from modelyard.platform.platform import Platform

pytestmark = pytest.mark.slow

Yard = tuple[Platform, NotingModel, Client]


@pytest.fixture(scope="module")
def yard() -> Iterator[Yard]:
    model = NotingModel()
    with open_platform(backend=model, trainers=[TabularTrainer(tuple(TEMPLATES))]) as platform:
        for name in TEMPLATES:
            platform.models.create(name, project="desk", base_model=name)
        yield platform, model, client_of(platform)


@given(st.integers(0, 2**32), st.sampled_from(tuple(TEMPLATES)))
@examples(60, deadline=None)
def test_what_is_trained_is_what_was_sampled(yard: Yard, seed: int, base: str) -> None:
    platform, model, client = yard
    model.sampled.clear()
    group = play(platform, client, base, seed)
    turns = check_episode(group, model, base)
    assert all(one.why or one.follows_exactly for one in turns)
    assert all(one.turn.called in ("gpt-4o", "claude-opus") for one in turns)
    key = group[0].refresh().key_id
    booked = [entry.id for entry in platform.usage.list(order="desc")][: len(turns)]
    assert {platform.usage.get(id_).key_id for id_ in booked} == {key}
    assert sorted(booked) == sorted(one.id for one in turns)


def test_the_scripts_have_all_that_programs_do(yard: Yard) -> None:
    platform, _, client = yard
    found: Counter[str] = Counter()
    for seed in range(60):
        group = play(platform, client, list(TEMPLATES)[seed % len(TEMPLATES)], seed)
        turns = group[0].turns()
        found.update(one.why.partition(":")[0] for one in turns)
        found.update({"replaced": sum(bool(one.untrained) for one in turns)})
        found.update({"call": sum(bool(one.choice.message.tool_calls) for one in turns)})
        found.update({"later sequence": len(group.trajectories().trajectories[0].histories) - 1})
    least = ("", "the first turn", "rewritten", "compacted", "fork", "thinking dropped", "a conversation of its own")
    assert {one: found[one] for one in (*least, "replaced", "call", "later sequence") if found[one] < 3} == {}
