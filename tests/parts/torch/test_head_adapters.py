"""Adapters that also change the output layer: served as they were trained, by us and by peft."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from families import APART, OWN_LOGITS, SERVED, WINDOWS, build_family
from local_models import SHAPE, adapter_weights, answered, engine_of, prompts, requested
from peft import PeftModel
from transformers import AutoModelForCausalLM

from modelyard.domain.completion import Sampling
from modelyard.parts.torch.lora import AdapterBank, LoraShape
from modelyard.parts.torch.network import Network
from modelyard.parts.torch.serving.batching_engine import Engine
from modelyard.parts.torch.training.examples import TokenRow
from modelyard.parts.torch.training.token_logprobs import TokenScorer
from modelyard.parts.torch.training.trainable import attach_adapter

WIDE = attrs.evolve(SHAPE, targets=(*SHAPE.targets, "lm_head"))
pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")


def shape_of(slot: int) -> LoraShape:
    return WIDE if slot % 2 else SHAPE


def loaded(folder: Path, *slots: int) -> Engine:
    engine = engine_of(folder)
    for slot in slots:
        if slot:
            engine.load(slot, shape_of(slot), adapter_weights(folder, shape_of(slot), seed=slot))
    return engine


def test_adapters_with_and_without_a_head_answer_side_by_side_as_each_alone(folder: Path) -> None:
    wanted = [(prompt, place % 5) for place, prompt in enumerate(prompts(15))]
    mixed = answered(
        loaded(folder, 1, 2, 3, 4),
        *(requested(prompt, 8, Sampling(seed=1), slot=slot) for prompt, slot in wanted),
    )
    for (prompt, slot), found in zip(wanted, mixed, strict=True):
        assert answered(loaded(folder, slot), requested(prompt, 8, Sampling(seed=1), slot=slot)) == [found]


def test_prompts_are_scored_with_the_head_of_their_own_adapter(folder: Path) -> None:
    prompt = prompts(1)[0] * 4

    def scores(engine: Engine, *slots: int) -> list[list[float]]:
        every = [requested(prompt, 1, slot=slot, top_of_prompt=0) for slot in slots]
        answered(engine, *every)
        return [[entry.logprob for entry in one.scored] for one in every]

    together = scores(loaded(folder, 1, 2, 3, 4), 0, 1, 2, 3, 4)
    for slot, found in enumerate(together):
        (alone,) = scores(loaded(folder, slot), slot)
        assert found == pytest.approx(alone, abs=1e-4)
    assert together[0] != pytest.approx(together[1], abs=1e-2)


FAMILIES = [SERVED[0], SERVED[5], WINDOWS[4], *OWN_LOGITS, APART[0], APART[1], APART[5]]


@pytest.mark.parametrize(("family", "options"), FAMILIES, ids=lambda value: value if isinstance(value, str) else "")
def test_a_familys_head_is_served_as_it_was_trained(
    folders: Callable[..., Path], tmp_path: Path, family: str, options: dict[str, Any]
) -> None:
    """Also where logits are scaled or capped after it, and where each sequence has a cache of its own."""
    model, adapter = tmp_path / "model", tmp_path / "adapter"
    model.mkdir()
    adapter.mkdir()
    folder, _ = build_family(folders(), model, family, options)
    network, serving = Network(folder), Network(folder)
    trained = attach_adapter(network.model, LoraShape(4, 8, ("lm_head",)), 0, "base")
    row = TokenRow(tuple(prompts(1)[0]) * 3, (9, 30), (None,) * 2)
    untouched, _ = TokenScorer(network).logprobs([row])
    trained.load({name: torch.randn_like(weights) * 0.2 for name, weights in trained.named.items()})
    expected, _ = TokenScorer(network).logprobs([row])
    assert (expected - untouched).abs().max() > 0.05
    expected.sum().backward()
    assert all(weights.grad is not None and float(weights.grad.abs().max()) > 0 for weights in trained.parameters)
    for name, parts in trained.files().items():
        (adapter / name).write_bytes(b"".join(parts))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        theirs = PeftModel.from_pretrained(plain, adapter).eval()
    with torch.no_grad():
        logprobs = theirs(torch.tensor([row.ids])).logits[0].log_softmax(-1)
    by_peft = torch.stack([logprobs[place - 1, row.ids[place]] for place in row.places])
    torch.testing.assert_close(by_peft, expected.detach(), atol=1e-3, rtol=1e-3)
    engine = Engine(serving, AdapterBank(serving.model, 2, 8), frozenset(), rows=2)
    engine.load(1, trained.shape, trained.named)
    for place, wanted in zip(row.places, expected.tolist(), strict=True):
        one = requested(row.ids[:place], 1, slot=1, top_logprobs=259)
        answered(engine, one, requested(row.ids[:place], 1))
        assert dict(one.sampled[0].top)[row.ids[place]] == pytest.approx(wanted, abs=2e-3)
    scored = requested(row.ids, 1, slot=1, top_of_prompt=0)
    answered(engine, scored)
    found = [scored.scored[place - 1].logprob for place in row.places]
    assert found == pytest.approx(expected.tolist(), abs=2e-3)
