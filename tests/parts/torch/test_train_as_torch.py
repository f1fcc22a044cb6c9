"""Training gives the losses, gradients and weights of a plain loop of torch: transformers' model, peft's adapter,
torch's AdamW and schedule.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from families import GROUPED, build_family
from local_models import base_model
from plain_loop import answers, in_64_bits, peft_model, plain_loop
from safetensors.torch import load
from training_kit import micro

from modelyard.domain.completion import Message, Role
from modelyard.domain.training import Example
from modelyard.parts.contracts.trainer import WORDS, Run, context_of, followed
from modelyard.parts.torch.records import Tuning
from modelyard.parts.torch.training.options import LocalSFTConfig
from modelyard.parts.torch.training.trainer import LocalTrainer

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")  # peft's

FAMILIES: list[tuple[str, dict[str, Any]]] = [
    ("llama", GROUPED),
    ("qwen2", GROUPED),
    ("qwen3", GROUPED),
    ("gemma", GROUPED),
    ("mistral", {**GROUPED, "sliding_window": None}),
    ("phi", {}),
    ("gpt2", {}),
]

ROWS = [
    Example((Message(Role.USER, f"What is {word}?"), Message(Role.ASSISTANT, word * (1 + place % 3))))
    for place, word in enumerate(WORDS)
]
CONFIG = LocalSFTConfig(batch_size=4, epochs=2, learning_rate=1e-3, schedule="cosine", warmup_steps=1, seed=3)


def trained(folder: Path, tuning: Tuning, config: LocalSFTConfig = CONFIG) -> Run:
    trainer = LocalTrainer([base_model(folder, "one", tuning)], device="cpu")
    return followed(trainer.train("sft", config, ROWS * config.epochs, context_of("one")))


def check_steps(run: Run, wanted: Sequence[Sequence[float]], bound: float = 1e-6) -> None:
    found = [[step.metrics["loss"], step.metrics["grad_norm"]] for step in run.steps]
    assert len(found) == len(wanted)
    for (loss, norm), (their_loss, their_norm) in zip(found, wanted, strict=True):
        assert loss == pytest.approx(their_loss, rel=bound, abs=bound)
        assert norm == pytest.approx(their_norm, rel=10 * bound)


def furthest(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> float:
    assert found.keys() <= wanted.keys()
    return max((found[name] - wanted[name]).detach().abs().max().item() for name in found)


@pytest.mark.parametrize(("family", "options"), FAMILIES, ids=[family for family, _ in FAMILIES])
def test_all_weights_are_trained_as_by_torch(family: str, options: dict[str, Any], tmp_path: Path) -> None:
    folder, model = build_family(micro(), tmp_path, family, options)
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(1 / 8 if weights.ndim > 1 else 1)
    model.save_pretrained(folder)
    run = trained(folder, Tuning.FULL)
    check_steps(run, plain_loop(model, answers(folder, ROWS), CONFIG))
    assert furthest(load(run.files["model.safetensors"]), dict(model.named_parameters())) <= 1e-6


def test_an_adapter_is_trained_as_by_peft_and_torch(tmp_path: Path) -> None:
    """Against a loop in 64 bits, too: what is left is what 32 bits round."""
    folder, _ = build_family(micro(), tmp_path, "llama", GROUPED)
    first = trained(folder, Tuning.LORA, LocalSFTConfig(learning_rate=0, batch_size=8, seed=3))
    begun = first.files["adapter_model.safetensors"]
    config = LocalSFTConfig(batch_size=4, epochs=2, learning_rate=1e-3, schedule="linear", seed=3)
    run = trained(folder, Tuning.LORA, config)
    found = load(run.files["adapter_model.safetensors"])
    model = peft_model(folder, begun)
    check_steps(run, plain_loop(model, answers(folder, ROWS), config))
    assert furthest(found, parameters(model)) <= 1e-6
    exact = peft_model(folder, begun).double()
    with in_64_bits():
        check_steps(run, plain_loop(exact, answers(folder, ROWS), config))
    assert next(iter(parameters(exact).values())).dtype is torch.float64
    assert furthest(found, parameters(exact)) <= 1e-5


def parameters(model: Any) -> dict[str, torch.Tensor]:
    return {name.replace(".default", ""): one for name, one in model.named_parameters()}
