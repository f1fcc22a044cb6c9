"""Sequences with caches of their own are answered as those that lie side by side in rows; and what goes wrong with one
goes wrong with it alone.

A network that could be served in rows is served with separate caches here, so that the two can be compared.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from local_models import SHAPE, TOKEN_BYTES, _loaded, adapter_weights, alone, answered, engine_of, prompts, requested

from modelyard.domain.completion import Sampling
from modelyard.errors import BackendError, ContextLengthExceeded
from modelyard.parts.torch.hf_cache import JointCache
from modelyard.parts.torch.serving.batching_engine import Engine
from modelyard.parts.torch.serving.separate_caches import SeparateCaches
from sampled import in_campaign


@pytest.fixture(params=[True, False], ids=["side by side", "one by one"])
def joins(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def separate(folder: Path, monkeypatch: pytest.MonkeyPatch, joins: bool) -> Any:
    """Makes engines as `engine_of` does."""

    def engine(keeps: bool = True, **options: Any) -> Engine:
        with monkeypatch.context() as changed:
            changed.setattr(_loaded(folder), "in_rows", False)
            changed.setattr(_loaded(folder), "has_cache", keeps)
            changed.setattr(_loaded(folder), "can_batch", keeps and joins)
            made = engine_of(folder, **options)
        assert isinstance(made.rows, SeparateCaches)
        return made

    return engine


def test_answers_are_those_of_rows(separate: Any, folder: Path, joins: bool) -> None:
    wanted = [requested(prompt, 3 + 2 * n, Sampling(seed=n)) for n, prompt in enumerate(prompts(9))]
    engine, passes = separate(rows=4), [0]
    body = engine._network.body
    body.register_forward_hook(lambda *_: passes.__setitem__(0, passes[0] + 1))
    assert answered(engine, *wanted) == alone(folder, *wanted)
    tokens = sum(len(one.answer) for one in wanted)
    assert passes[0] < tokens // 2 if joins else passes[0] == tokens


def test_a_prompt_that_many_have_is_read_once_for_each_adapter(separate: Any, folder: Path, joins: bool) -> None:
    engine, read = separate(rows=8), list[tuple[int, int]]()
    engine.load(1, SHAPE, adapter_weights(folder, SHAPE, seed=1))
    engine._network.body.register_forward_hook(
        lambda _, __, given, ___: read.append(given["input_ids"].shape), with_kwargs=True
    )
    wanted = [requested([*range(5, 45)], 6, Sampling(seed=n), slot=n % 2) for n in range(8)]
    found = answered(engine, *wanted)
    assert [(rows, tokens) for rows, tokens in read if tokens > 1] == ([(2, 40)] if joins else [(1, 40), (1, 40)])
    other = engine_of(folder)
    other.load(1, SHAPE, adapter_weights(folder, SHAPE, seed=1))
    assert found == answered(other, *(requested(one.prompt, 6, one.sampling, slot=one.slot) for one in wanted))
    assert len({str(answer) for answer in found}) == 8


def test_each_has_its_adapter(separate: Any, folder: Path) -> None:
    engines = [separate(), engine_of(folder)]
    for engine in engines:
        for slot in (1, 2):
            engine.load(slot, SHAPE, adapter_weights(folder, SHAPE, seed=slot))
    found, expected = (
        answered(engine, *(requested(prompt, 8, slot=n % 3) for n, prompt in enumerate(prompts(6))))
        for engine in engines
    )
    assert found == expected


def _taken(engine: Engine) -> int:
    """The bytes of all caches."""
    assert isinstance(engine.rows, SeparateCaches)
    return sum(batch.cache.nbytes for batch in set(engine.rows._batches.values()))


def test_caches_take_what_was_reckoned_and_go_with_their_answers(separate: Any, joins: bool) -> None:
    engine = separate(ends=frozenset())
    wanted = [requested(prompt, 20) for prompt in prompts(3)]
    for one in wanted:
        engine.submit(one)
    engine.wait(wanted[0], 10)
    lengths = [one.length - 1 for one in wanted]
    padded = len(lengths) * max(lengths)
    assert _taken(engine) == (padded if joins else sum(lengths)) * TOKEN_BYTES
    for one in wanted:
        engine.cancel(one)
    assert not engine.rows._batches


def test_memory_is_never_exceeded_and_those_for_whom_there_is_none_wait(
    separate: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, most = TOKEN_BYTES * 100, [0]
    engine = separate(memory=memory, ends=frozenset())
    read = JointCache.read

    def watching(cache: JointCache, ids: torch.Tensor) -> torch.Tensor:
        states = read(cache, ids)
        most[0] = max(most[0], _taken(engine))
        return states

    monkeypatch.setattr(JointCache, "read", watching)
    wanted = [requested([*range(5, 25 - 3 * n)], 40, Sampling(seed=n)) for n in range(5)]
    found = answered(engine, *wanted)
    assert memory // 2 < most[0] <= memory
    assert found == answered(
        engine_of(folder, ends=frozenset()), *[requested(one.prompt, 40, one.sampling) for one in wanted]
    )


def test_what_can_never_fit_is_refused_with_the_numbers(separate: Any) -> None:
    engine = separate(memory=TOKEN_BYTES * 30)
    with pytest.raises(ContextLengthExceeded, match=r"context length is 30 tokens.*The messages have 30; shorten"):
        engine.submit(requested([5] * 30))
    (found,) = answered(engine, fitting := requested([5] * 25, 100))
    assert fitting.length <= 30
    assert found


@pytest.mark.parametrize("at", [1, in_campaign(4), 5, in_campaign(6), 9])
@pytest.mark.parametrize("where", ["layers.1.mlp", ""])
def test_a_fault_fails_one_and_the_others_say_what_they_would_have_said(
    separate: Any, folder: Path, at: int, where: str
) -> None:
    """Also between two that continue, within a pass, and after it: no sequence is read from where it is not."""
    engine, calls = separate(ends=frozenset()), [0]

    def failing(*_: Any) -> None:
        calls[0] += 1
        if calls[0] == at:
            raise RuntimeError("a card fell out")

    engine._network.body.get_submodule(where).register_forward_hook(failing)
    wanted = [requested(prompt, 12) for prompt in prompts(3)]
    expected = answered(engine_of(folder, ends=frozenset()), *[requested(one.prompt) for one in wanted])
    found = answered(engine, *wanted)
    failed = [one for one in wanted if one.failure is not None]
    assert len(failed) <= 1
    assert all(isinstance(one.failure, BackendError) for one in failed)
    assert calls[0] > at
    for one, answer, right in zip(wanted, found, expected, strict=True):
        assert answer == right or one in failed


def test_a_network_without_a_cache_reads_all_each_time(separate: Any, folder: Path) -> None:
    wanted = [requested(prompt, 6) for prompt in prompts(3)]
    engine = separate(keeps=False)
    assert answered(engine, *wanted) == alone(folder, *wanted)
    assert engine.rows.whole == 0
