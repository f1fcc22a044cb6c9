"""Weights of 16-bit floats and of 8-bit numbers beside those of 32 bits, by family: log-probabilities, greedy answers,
and losses of adapters. The bounds are those of `docs/reference/local-models.md`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from families import APART, OWN_LOGITS, SERVED, WINDOWS, build_family
from local_models import answered, base_model, prompts, requested

from modelyard.domain.completion import Message, Role
from modelyard.domain.training import Example
from modelyard.parts.contracts.trainer import WORDS, context_of, followed
from modelyard.parts.torch.lora import AdapterBank
from modelyard.parts.torch.narrow_weights import NarrowLinear
from modelyard.parts.torch.network import Network
from modelyard.parts.torch.records import WeightFormat
from modelyard.parts.torch.serving.batching_engine import Engine
from modelyard.parts.torch.training.options import LocalSFTConfig
from modelyard.parts.torch.training.trainer import LocalTrainer

pytestmark = pytest.mark.slow

FAMILIES = dict(reversed([*SERVED, *WINDOWS, *OWN_LOGITS, *APART]))
"""The first shape of each family."""

JUMP = ("mixtral", "qwen3_moe", "llama4_text", "deepseek_v3", "mamba", "qwen3_next")
"""Those with experts, of which another one may be chosen, and with states, in which differences grow."""

FORMS = [(WeightFormat.BFLOAT16, 0.02), (WeightFormat.INT8, 0.07)]
BOUND_OF_JUMPS = 0.05
BOUND_OF_LOSSES = 0.005


def times_of(family: str) -> float:
    """How large weights are, so that logits differ among tokens: as they are drawn where differences jump."""
    return 1 if family in JUMP else 4


def logprobs(network: Network, ids: Sequence[int]) -> torch.Tensor:
    with torch.inference_mode():
        return network.logits(network.read([ids]))[0].log_softmax(-1)


def greedy(network: Network, asked: list[list[int]]) -> list[list[int]]:
    engine = Engine(network, AdapterBank(network.model, 1, 8), frozenset(), rows=len(asked))
    return answered(engine, *(requested(prompt, 16) for prompt in asked))


@pytest.mark.parametrize(("form", "bound"), FORMS)
@pytest.mark.parametrize("family", FAMILIES)
def test_log_probabilities_are_close_and_answers_part_only_at_near_ties(
    folders: Callable[..., Path], tmp_path: Path, family: str, form: WeightFormat, bound: float
) -> None:
    folder = build_family(folders("nano"), tmp_path, family, FAMILIES[family], times=times_of(family))[0]
    plain, narrow, asked = Network(folder), Network(folder, form=form), prompts(10)
    assert (narrow.in_rows, narrow.can_batch, narrow.can_pad) == (plain.in_rows, plain.can_batch, plain.can_pad)
    assert any(isinstance(one, NarrowLinear) for one in narrow.model.modules())
    bound = BOUND_OF_JUMPS if family in JUMP else bound
    far = max(float((logprobs(narrow, one) - logprobs(plain, one)).abs().max()) for one in asked)
    assert 0 < far < bound
    whole = Network(folder)
    for prompt, found, wanted in zip(asked, greedy(narrow, asked), greedy(plain, asked), strict=True):
        parted = next((place for place in range(16) if found[place] != wanted[place]), None)
        if parted is not None:
            scores = logprobs(whole, [*prompt, *wanted[:parted]])[-1]
            assert float(scores[wanted[parted]] - scores[found[parted]]) < 2 * bound


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_stay_close_to_those_on_32_bits(folders: Callable[..., Path], tmp_path: Path, family: str) -> None:
    folder = build_family(folders("nano"), tmp_path, family, FAMILIES[family], times=1 if family == "mamba" else 4)[0]
    rows = [Example((Message(Role.USER, word), Message(Role.ASSISTANT, word[::-1]))) for word in WORDS]
    config = LocalSFTConfig(batch_size=4, epochs=4, learning_rate=1e-2, seed=3)

    def losses(form: WeightFormat | None) -> list[float]:
        base: Any = attrs.evolve(base_model(folder, "one"), weights=form)
        run = followed(LocalTrainer([base], device="cpu").train("sft", config, rows * 4, context_of("one")))
        return [step.metrics["loss"] for step in run.steps]

    wanted = losses(None)
    assert wanted[-1] < wanted[0]
    for form, _ in FORMS:
        found = losses(form)
        assert found == pytest.approx(wanted, rel=BOUND_OF_LOSSES)
        assert found != wanted
