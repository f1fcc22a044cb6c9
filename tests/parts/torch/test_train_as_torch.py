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
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from safetensors.torch import load
from training_kit import micro
from transformers import AutoModelForCausalLM, get_scheduler

from modelyard.domain.completion import Message, Role
from modelyard.domain.training import Example
from modelyard.parts.contracts.trainer import WORDS, Run, context_of, followed
from modelyard.parts.torch.records import Tuning
from modelyard.parts.torch.tokenizer import ChatTokenizer
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


def answers(folder: Path) -> list[tuple[list[int], list[int]]]:
    """The tokens of each row, and as labels those of its answer up to the end token."""
    chat, found = ChatTokenizer(folder), []
    for row in ROWS:
        prompt = chat.prompt(row.messages[:1])
        ids = chat.render(row.messages, (), add_generation_prompt=False)
        end = next(at for at, token in enumerate(ids) if at >= len(prompt) and token in chat.end_tokens) + 1
        found.append((ids[:end], [*[-100] * len(prompt), *ids[len(prompt) : end]]))
    return found


def plain_loop(model: Any, rows: Sequence[tuple[list[int], list[int]]], config: LocalSFTConfig) -> list[list[float]]:
    """The loss and the gradient's norm of each step."""
    learned = [one for one in model.parameters() if one.requires_grad]
    groups = [
        {"params": [one for one in learned if one.ndim > 1], "weight_decay": 0.1},
        {"params": [one for one in learned if one.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.99))  # type: ignore[arg-type]
    steps = config.epochs * len(rows) // config.rows_per_batch
    schedule = get_scheduler(config.schedule, optimizer, config.warmup_steps, steps)
    found = []
    for step in range(steps):
        start = step * config.rows_per_batch % len(rows)
        batch = rows[start : start + config.rows_per_batch]
        longest = max(len(ids) for ids, _ in batch)
        ids = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids, _ in batch])
        there = torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids, _ in batch])
        labels = torch.tensor([[*labels, *[-100] * (longest - len(labels))] for _, labels in batch])
        logits = model(input_ids=ids, attention_mask=there).logits[:, :-1].float()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        schedule.step()
        found.append([loss.item(), norm.item()])
    return found


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
    check_steps(run, plain_loop(model, answers(folder), CONFIG))
    assert furthest(load(run.files["model.safetensors"]), dict(model.named_parameters())) <= 1e-6


def check_adapter(folder: Path, rate: float) -> None:
    base = dict.fromkeys(("learning_rate", "warmup_steps"), 0)
    first = trained(folder, Tuning.LORA, LocalSFTConfig(**{**base, "batch_size": 8, "seed": 3}))
    config = LocalSFTConfig(batch_size=4, epochs=2, learning_rate=rate, schedule="linear", seed=3)
    run = trained(folder, Tuning.LORA, config)
    names = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model: Any = get_peft_model(plain, LoraConfig(r=16, lora_alpha=32, target_modules=names, task_type="CAUSAL_LM"))
    set_peft_model_state_dict(model, load(first.files["adapter_model.safetensors"]))
    check_steps(run, plain_loop(model.eval(), answers(folder), config))
    theirs = {name.replace(".default", ""): one for name, one in model.named_parameters()}
    assert furthest(load(run.files["adapter_model.safetensors"]), theirs) <= 1e-6


def test_an_adapter_is_trained_as_by_peft_and_torch(tmp_path: Path) -> None:
    folder, _ = build_family(micro(), tmp_path, "llama", GROUPED)
    check_adapter(folder, 1e-3)
