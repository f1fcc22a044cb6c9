"""An adapter whose answers are not numbers fails its own requests, and changes none of those that come after."""

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from local_models import SHAPE, TOKEN_BYTES, adapter_weights, answered, engine_of, prompts, requested
from tape import Recorder

from modelyard.domain.completion import Sampling
from modelyard.errors import BackendError
from modelyard.parts.torch.serving import forward as passes_module
from modelyard.parts.torch.serving.batching_engine import Engine
from modelyard.parts.torch.serving.sequence import Sequence
from sampled import in_campaign

BROKEN, SOUND = 1, 2
FAULTS = {"inf": torch.inf, "nan": torch.nan, "too large": 1e38}


@pytest.fixture(params=[False, True], ids=["passes", "recorded"])
def adapted(request: pytest.FixtureRequest, folder: Path) -> Callable[..., Engine]:
    """Engines with a broken adapter next to a sound one, whose passes are made each time or recorded."""

    def make(fault: float = torch.inf, **room: int) -> Engine:
        made = engine_of(folder, ends=frozenset(), recorder=Recorder if request.param else None, **room)
        weights = adapter_weights(folder, SHAPE, seed=BROKEN)
        keys = next(name for name in weights if "k_proj.lora_B" in name)
        made.load(BROKEN, SHAPE, {**weights, keys: weights[keys] * fault})
        made.load(SOUND, SHAPE, adapter_weights(folder, SHAPE, seed=SOUND))
        return made

    return make


def fail(engine: Engine) -> None:
    """Let a request fail: it gets what is wrong, and no token."""
    one = requested([9] * 150, 5, slot=BROKEN)
    answered(engine, one)
    assert type(one.failure) is BackendError
    assert "not a number" in str(one.failure)
    assert not one.sampled


def beside_a_long_one(engine: Engine, before: Callable[[], object]) -> list[Sequence]:
    """A long answer and, after what is done `before`, a short one in the next row: its mask hides most of that row."""
    long, short = requested([7] * 200, 30), requested([5, 6, 8], 12, Sampling(seed=1))
    engine.submit(long)
    engine.wait(long, 3)
    before()
    engine.wait(long, 6)
    answered(engine, short)
    return [long, short]


@pytest.mark.parametrize("fault", FAULTS)
def test_the_next_one_in_its_row_is_answered_as_by_a_fresh_engine(adapted: Callable[..., Engine], fault: str) -> None:
    """Bit for bit."""
    used, fresh = adapted(FAULTS[fault]), adapted()
    found = beside_a_long_one(used, lambda: fail(used))
    expected = beside_a_long_one(fresh, lambda: None)
    assert [one.failure for one in found] == [None, None]
    for one, other in zip(found, expected, strict=True):
        assert [(at.token, at.logprob) for at in one.sampled] == [(at.token, at.logprob) for at in other.sampled]


def test_it_fails_alone_in_a_batch_and_also_when_another_takes_its_row(adapted: Callable[..., Engine]) -> None:
    engine = adapted()
    wanted = [requested(prompt, 9, Sampling(seed=3), slot=place % 3) for place, prompt in enumerate(prompts(9))]
    answered(engine, *wanted)
    assert [one.failure is None for one in wanted] == [one.slot != BROKEN for one in wanted]
    for one in wanted:
        if one.slot != BROKEN:
            assert answered(adapted(), requested(one.prompt, 9, one.sampling, slot=one.slot)) == [one.answer]


def test_the_cache_of_a_request_cancelled_while_its_prompt_is_read_is_not_reused(
    adapted: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cancelled when the first part of its prompt has been read."""
    engine = adapted()

    def begun_and_given_up() -> None:
        gone, plain = requested([9] * 150, 5, slot=BROKEN), engine._network.hidden

        def once(ids: torch.Tensor, *rest: object) -> object:
            if gone.cached:
                raise KeyboardInterrupt
            return plain(ids, *rest)  # type: ignore[arg-type]

        engine.submit(gone)
        with monkeypatch.context() as patch:
            patch.setattr(passes_module, "PREFILL_TOKENS", 100)
            patch.setattr(engine._network, "hidden", once)
            with pytest.raises(KeyboardInterrupt):
                engine.wait(gone, 1)
        engine.cancel(gone)

    found = beside_a_long_one(engine, begun_and_given_up)
    assert [one.failure for one in found] == [None, None]


@pytest.mark.parametrize("seed", [0, in_campaign(1), in_campaign(2)])
def test_rows_that_join_and_leave_a_batch_are_answered_as_if_alone(
    folder: Path, adapted: Callable[..., Engine], seed: int
) -> None:
    """In rows that become longer and shorter again."""
    drawn = random.Random(seed)
    engine = adapted(drawn.choice([*FAULTS.values()]), rows=6, memory=TOKEN_BYTES * 256 * 8)
    wanted = [
        requested(
            prompt * drawn.choice([1, 1, 8]), drawn.randrange(1, 40), Sampling(seed=place), slot=drawn.choice([0, 1])
        )
        for place, prompt in enumerate(prompts(24, seed=seed))
    ]
    for start in range(0, len(wanted), 8):
        answered(engine, *wanted[start : start + 8])
    assert [one.failure is None for one in wanted] == [one.slot != BROKEN for one in wanted]
    left = [one for one in wanted if one.slot != BROKEN]
    assert [one.answer for one in left] == [
        of_the_base(folder, tuple(one.prompt), one.max_tokens, one.sampling.seed) for one in left
    ]


@cache
def of_the_base(folder: Path, prompt: tuple[int, ...], max_tokens: int, seed: int) -> list[int]:
    """What an engine that has never seen an adapter answers to that alone."""
    return answered(engine_of(folder, ends=frozenset()), requested(prompt, max_tokens, Sampling(seed=seed)))[0]
