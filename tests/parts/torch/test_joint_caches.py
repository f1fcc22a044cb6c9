"""Sequences that come to a joint cache and leave it are answered as each is alone, whatever layers keep of them."""

import random
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from families import APART, WINDOW, build_family
from local_models import answered, prompts, requested

from modelyard.domain.completion import Sampling
from modelyard.parts.torch.lora import AdapterBank
from modelyard.parts.torch.network import Network
from modelyard.parts.torch.serving.batching_engine import Engine
from modelyard.parts.torch.serving.separate_caches import SeparateCaches
from sampled import in_campaign

SEEDS = [0, in_campaign(1), in_campaign(2)]

FAMILIES = {family: options for family, options in APART if family in ("mamba", "qwen3_next", "deepseek_v3")}
FAMILIES["mistral"] = WINDOW
"""States in the place of keys, states beside keys, compressed keys, and the last keys alone."""


@pytest.fixture(params=sorted(FAMILIES))
def network(request: pytest.FixtureRequest, folders: Callable[..., Path], tmp_path: Path) -> Network:
    found = Network(build_family(folders("nano"), tmp_path, request.param, FAMILIES[request.param])[0])
    if found.in_rows:
        found.in_rows, found.has_cache, found.can_batch, found.can_pad = False, True, True, True
    if not found.can_batch:
        pytest.skip("this transformers has caches of its own for them, which cannot be joined")
    return found


def engine_of(network: Network, **room: Any) -> Engine:
    engine = Engine(network, AdapterBank(network.model, 1, 8), frozenset(), **room)
    assert isinstance(engine.rows, SeparateCaches)
    return engine


def watched(engine: Engine) -> list[tuple[int, ...]]:
    """The shapes (rows, tokens) of the passes that follow."""
    seen: list[tuple[int, ...]] = []
    engine._network.body.register_forward_hook(
        lambda _, __, given, ___: seen.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    return seen


@pytest.mark.parametrize("seed", SEEDS)
def test_who_comes_and_leaves_changes_nothing_for_the_others(network: Network, seed: int) -> None:
    """Short ones beside long ones, some of one length, some at once; the longest leaves, and what comes then is as long
    as what stays.
    """
    draw = random.Random(seed)
    lengths = [30, *(draw.choice([2, 7, 7, 20]) for _ in range(9))]
    wanted = [
        requested((prompt * 30)[:length], draw.choice([3, 9, 14]), Sampling(seed=n))
        for n, (prompt, length) in enumerate(zip(prompts(10, seed), lengths, strict=True))
    ]
    expected = [answered(engine_of(network, rows=1), deepcopy(one))[0] for one in wanted]
    engine, coming, running = engine_of(network, rows=5), list(wanted), []
    while coming:
        for _ in range(draw.randint(1, 3)):
            running += coming[:1]
            for one in coming[:1]:
                engine.submit(one)
            coming = coming[1:]
        engine.wait(running[-1], draw.randint(1, 3))
    for one in wanted:
        engine.wait(one, one.max_tokens)
    assert [one.answer for one in wanted] == expected
    assert not engine.rows._batches  # type: ignore[union-attr]


def test_a_row_that_is_left_is_that_of_a_lone_cache(network: Network) -> None:
    """Also its positions, when it is joined with another that is as long, after a longer one has gone."""
    ids = torch.arange(3, 43)[None]
    with torch.inference_mode():
        caches = [network.new_cache() for _ in range(3)]
        for cache, length in zip(caches, (30, 12, 12), strict=True):
            cache.read(ids[:, :length])
        lone = [deepcopy(cache) for cache in caches]
        joint, second, third = caches
        joint.join([second])
        copied = joint.copy(1)
        joint.keep([1])
        assert joint.nbytes <= lone[1].nbytes
        assert copied.nbytes == joint.nbytes
        joint.join([third])
        found = [joint.read(ids[0, [12, 12]][:, None]), copied.read(ids[:, 12:13])]
        right = lone[1].read(ids[:, 12:13])
    assert joint.seen == [13, 13]
    for states in found:
        assert torch.allclose(states, right.expand_as(states), atol=1e-4)


def test_prompts_of_one_length_are_read_at_once(network: Network) -> None:
    engine = engine_of(network)
    several = [requested([n, *range(20, 31)], 3) for n in range(3, 9)]
    several.insert(2, requested([*range(90, 120)], 3))
    expected = [answered(engine, deepcopy(one))[0] for one in several]
    seen = watched(engine)
    assert answered(engine, *several) == expected
    assert sorted(seen) == [(1, 30), (6, 12), (7, 1), (7, 1)]


@pytest.mark.parametrize("seed", SEEDS)
def test_prompts_of_about_one_length_are_read_at_once(network: Network, seed: int) -> None:
    """One that is not half as long as the longest is read with others of its own length."""
    engine, draw = engine_of(network), random.Random(seed)
    lengths = [31, 16, *(draw.randint(16, 31) for _ in range(4)), 15, 9, 1]
    several = [requested((prompt * 40)[:length], 6) for prompt, length in zip(prompts(9, seed), lengths, strict=True)]
    draw.shuffle(several)
    expected = [answered(engine, deepcopy(one))[0] for one in several]
    seen = watched(engine)
    assert answered(engine, *several) == expected
    assert network.can_pad
    assert sorted(seen) == [(1, 1), (2, 15), (6, 31), *[(9, 1)] * 5]


def test_a_network_that_pads_wrongly_reads_one_length_at_once(network: Network) -> None:
    network.can_pad = False
    engine = engine_of(network)
    several = [requested([n, *range(20, 31 + n % 2)], 3) for n in range(3, 9)]
    expected = [answered(engine, deepcopy(one))[0] for one in several]
    seen = watched(engine)
    assert answered(engine, *several) == expected
    assert sorted(seen) == [(3, 12), (3, 13), (6, 1), (6, 1)]


def test_nothing_is_joined_again_while_nobody_comes_or_leaves(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, joined = engine_of(network), list[int]()
    kind: Any = type(network.new_cache())
    plain = kind.join

    def counting(cache: Any, others: Any) -> None:
        joined.append(len(others))
        plain(cache, others)

    monkeypatch.setattr(kind, "join", counting)
    answered(engine, *(requested(prompt, 9) for prompt in ([5] * 4, [6] * 9, [7] * 20)))
    assert joined == [2]


@pytest.mark.parametrize("at", [1, 2, 3, 5])
def test_after_a_pass_that_failed_halfway_all_are_read_again(network: Network, at: int) -> None:
    """What its layers had stored by then is of no use."""
    wanted = [requested(prompt, 8) for prompt in prompts(4)]
    expected = [answered(engine_of(network, rows=1), deepcopy(one))[0] for one in wanted]
    engine, calls = engine_of(network), [0]

    def failing(*_: Any) -> None:
        calls[0] += 1
        if calls[0] == at:
            raise RuntimeError("a card fell out")

    for one in wanted:
        engine.submit(one)
    engine.wait(wanted[-1], 2)
    handle = network.body.layers[-1].register_forward_hook(failing)
    for one in wanted:
        engine.wait(one, one.max_tokens)
    handle.remove()
    assert [one.failure is None for one in wanted] == [True, True, True, False]
    assert [one.answer for one in wanted[:3]] == expected[:3]
