"""Sequences with caches of their own are answered as those that lie side by side in rows; and what goes wrong with one
goes wrong with it alone.

A network that could be served in rows is served apart here, so that the two can be compared.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from local_models import SHAPE, TOKEN_BYTES, _loaded, adapter_weights, alone, answered, engine_of, prompts, requested

from modelyard.domain.completion import Sampling
from modelyard.engines.torch.hf_cache import SequenceCache
from modelyard.engines.torch.serving.batching_engine import Engine
from modelyard.engines.torch.serving.separate_caches import SeparateCaches
from modelyard.errors import BackendError, ContextLengthExceeded


@pytest.fixture(params=[True, False], ids=["side by side", "one by one"])
def joins(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def apart(folder: Path, monkeypatch: pytest.MonkeyPatch, joins: bool) -> Any:
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


def test_answers_are_those_of_rows(apart: Any, folder: Path, joins: bool) -> None:
    wanted = [requested(prompt, 3 + 2 * n, Sampling(seed=n)) for n, prompt in enumerate(prompts(9))]
    engine, passes = apart(rows=4), [0]
    body = engine._network.body
    body.register_forward_hook(lambda *_: passes.__setitem__(0, passes[0] + 1))
    assert answered(engine, *wanted) == alone(folder, *wanted)
    tokens = sum(len(one.answer) for one in wanted)
    assert passes[0] < tokens // 2 if joins else passes[0] == tokens


def test_a_prompt_that_many_have_is_read_once_for_each_adapter(apart: Any, folder: Path) -> None:
    engine, read = apart(rows=8), list[int]()
    engine.load(1, SHAPE, adapter_weights(folder, SHAPE, seed=1))
    engine._network.body.register_forward_hook(
        lambda _, __, given, ___: read.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    wanted = [requested([*range(5, 45)], 6, Sampling(seed=n), slot=n % 2) for n in range(8)]
    found = answered(engine, *wanted)
    assert [tokens for tokens in read if tokens > 1] == [40, 40]
    other = engine_of(folder)
    other.load(1, SHAPE, adapter_weights(folder, SHAPE, seed=1))
    assert found == answered(other, *(requested(one.prompt, 6, one.sampling, slot=one.slot) for one in wanted))
    assert len({str(answer) for answer in found}) == 8


def test_each_has_its_adapter(apart: Any, folder: Path) -> None:
    engines = [apart(), engine_of(folder)]
    for engine in engines:
        for slot in (1, 2):
            engine.load(slot, SHAPE, adapter_weights(folder, SHAPE, seed=slot))
    found, expected = (
        answered(engine, *(requested(prompt, 8, slot=n % 3) for n, prompt in enumerate(prompts(6))))
        for engine in engines
    )
    assert found == expected


def test_caches_take_what_was_reckoned_and_go_with_their_answers(apart: Any) -> None:
    engine = apart(ends=frozenset())
    wanted = [requested(prompt, 20) for prompt in prompts(3)]
    for one in wanted:
        engine.submit(one)
    engine.wait(wanted[0], 10)
    taken = {one.length - 1: cache.nbytes for one, cache in engine.rows._caches.items()}
    assert taken == {tokens: tokens * TOKEN_BYTES for tokens in taken}
    assert len(taken) == 3
    for one in wanted:
        engine.cancel(one)
    assert not engine.rows._caches


def test_memory_is_never_exceeded_and_those_for_whom_there_is_none_wait(
    apart: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, most = TOKEN_BYTES * 100, [0]
    engine = apart(memory=memory, ends=frozenset())
    read = SequenceCache.read

    def watching(cache: SequenceCache, ids: torch.Tensor) -> torch.Tensor:
        states = read(cache, ids)
        most[0] = max(most[0], sum(one.nbytes for one in engine.rows._caches.values()))
        return states

    monkeypatch.setattr(SequenceCache, "read", watching)
    wanted = [requested([*range(5, 25)], 40, Sampling(seed=n)) for n in range(5)]
    found = answered(engine, *wanted)
    assert memory // 2 < most[0] <= memory
    assert found == answered(
        engine_of(folder, ends=frozenset()), *[requested(one.prompt, 40, one.sampling) for one in wanted]
    )


def test_what_can_never_fit_is_refused_with_the_numbers(apart: Any) -> None:
    engine = apart(memory=TOKEN_BYTES * 30)
    with pytest.raises(ContextLengthExceeded, match=r"context length is 30 tokens.*The messages have 30; shorten"):
        engine.submit(requested([5] * 30))
    (found,) = answered(engine, fitting := requested([5] * 25, 100))
    assert fitting.length <= 30
    assert found


@pytest.mark.parametrize("at", [1, 4, 5, 6, 9])
@pytest.mark.parametrize("where", ["layers.1.mlp", ""])
def test_a_fault_fails_one_and_the_others_say_what_they_would_have_said(
    apart: Any, folder: Path, at: int, where: str
) -> None:
    """Also between two that continue, within a pass, and after it: no sequence is read from where it is not."""
    engine, calls = apart(ends=frozenset()), [0]

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


def test_a_network_without_a_cache_reads_all_each_time(apart: Any, folder: Path) -> None:
    wanted = [requested(prompt, 6) for prompt in prompts(3)]
    engine = apart(keeps=False)
    assert answered(engine, *wanted) == alone(folder, *wanted)
    assert engine.rows.whole == 0
