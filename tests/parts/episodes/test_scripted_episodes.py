"""Episodes of every kind: no token is trained that was not sampled, and none with other numbers than those of then."""

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from episode_agents import PROGRAMS, NotingModel, Program, Sampled, encode_prompt
from example_counts import examples
from http_client import Client, client_of
from modelyard import open_platform
from modelyard.domain.training import History, SampledChoice
from modelyard.engines.tabular.trainer import TabularTrainer
from modelyard.platform.platform import Platform

pytestmark = pytest.mark.slow

Yard = tuple[Platform, NotingModel, Client]


@pytest.fixture(scope="module")
def yard() -> Iterator[Yard]:
    model = NotingModel()
    with open_platform(backend=model, trainers=[TabularTrainer(("keeps", "drops"))]) as platform:
        for name in ("keeps", "drops"):
            platform.models.create(name, project="desk", base_model=name)
        yield platform, model, client_of(platform)


def act(program: Program, random: Random) -> None:
    """Do one thing that programs do."""
    calls = program.ask(random.randrange(4 if random.random() < 0.3 else 10**6))
    for call in calls:
        program.result(call, random.choice(("found", "", "nothing\nthere")))
    if not calls:
        program.user(random.choice(("go on", "again", "why?")))


def change(program: Program, random: Random) -> Program:
    """Return the program, or one that goes on in another way: at a fork, with a shorter history or another one."""
    kind = random.randrange(8)
    other = program.copy()
    if kind == 0:
        return other
    starts = [at for at, one in enumerate(other.told) if one.get("role") == "user" and type(one["content"]) is str]
    if kind in (1, 4) and len(starts) > 2:
        other.told[: starts[-1]] = [{"role": "user", "content": "in short: it was asked"}]
        return other
    if kind == 2 and starts:
        other.told[starts[0]]["content"] = "another question"
        return other
    if kind == 3 and len(starts) > 1:
        del other.told[starts[-1] :]
        other.user("rather this")
        return other
    return program


def play(platform: Platform, client: Client, base: str, seed: int) -> Any:
    """Play an episode, and return its handle."""
    random = Random(seed)
    with platform.episodes.group("scripted", model=f"desk/{base}", size=1) as group:
        episode = group[0]
        programs = []
        for _ in range(random.randrange(1, 3)):
            kind = random.choice(PROGRAMS)
            program = kind(client, episode.key, random.random() < 0.5, random.random() < 0.6)
            program.thoughts = random.random() < 0.5
            program.user(random.choice(("hello", "where is it?")))
            programs.append(program)
        for _ in range(random.randrange(1, 10)):
            program = random.choice(programs)
            if (next_one := change(program, random)) is not program:
                programs.append(next_one)
            if random.random() < 0.15:
                random_state = random.getstate()
                program.copy().ask(7)  # a request that is sent again, as after a lost answer
                random.setstate(random_state)
            act(next_one, random)
        episode.reward(1.0)
    return group


def check_history(history: History, thinks: bool, sampled: set[Sampled]) -> list[Sampled]:
    """Return what a history trains, checked against what was sampled, and against what the template writes."""
    trained: list[Sampled] = []
    before: list[Any] = []
    for item in history.items:
        choice = item if isinstance(item, SampledChoice) else None
        if choice is not None and choice.logprobs is not None:
            one = Sampled(choice.prompt_token_ids, choice.token_ids, tuple(entry.logprob for entry in choice.logprobs))
            assert one in sampled
            assert one.prompt == encode_prompt(before, history.tools, thinks)
            if trained:
                known = (*trained[-1].prompt, *trained[-1].ids)
                assert one.prompt[: len(known)] == known
            trained.append(one)
        before.append(item if choice is None else choice.message)
    return trained


@given(st.integers(0, 2**32), st.sampled_from(("keeps", "drops")))
@examples(60, deadline=None)
def test_what_is_trained_is_what_was_sampled(yard: Yard, seed: int, base: str) -> None:
    platform, model, client = yard
    model.sampled.clear()
    group = play(platform, client, base, seed)
    (trajectory,) = group.trajectories().trajectories
    turns = group[0].turns()
    assert Counter(
        Sampled(one.prompt_ids, one.ids, tuple(e.logprob for e in one.logprobs)) for one in turns
    ) == Counter(model.sampled)
    trained: Counter[Sampled] = Counter()
    for history in trajectory.histories:
        trained.update(check_history(history, base == "keeps", set(model.sampled)))
    assert trained <= Counter(model.sampled)
    assert trained.total() == sum(not one.untrained for one in turns)
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
        group = play(platform, client, ("keeps", "drops")[seed % 2], seed)
        turns = group[0].turns()
        found.update(one.why.partition(":")[0] for one in turns)
        found.update({"replaced": sum(bool(one.untrained) for one in turns)})
        found.update({"call": sum(bool(one.choice.message.tool_calls) for one in turns)})
        found.update({"later sequence": len(group.trajectories().trajectories[0].histories) - 1})
    least = ("", "the first turn", "rewritten", "compacted", "fork", "thinking dropped", "a conversation of its own")
    assert {one: found[one] for one in (*least, "replaced", "call", "later sequence") if found[one] < 3} == {}
