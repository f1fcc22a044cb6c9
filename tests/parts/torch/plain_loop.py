"""A plain training loop: transformers' model, peft's adapter, torch's AdamW and schedule."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from safetensors.torch import load
from transformers import AutoModelForCausalLM, get_scheduler

from modelyard.domain.training import Example
from modelyard.parts.torch.tokenizer import ChatTokenizer
from modelyard.parts.torch.training.options import LocalSFTConfig

TARGETS = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]


def answers(folder: Path, rows: Sequence[Example]) -> list[tuple[list[int], list[int]]]:
    """The tokens of each row, and as labels those of its answer up to the end token."""
    chat, found = ChatTokenizer(folder), []
    for row in rows:
        prompt = chat.prompt(row.messages[:1])
        ids = chat.render(row.messages, (), add_generation_prompt=False)
        end = next(at for at, token in enumerate(ids) if at >= len(prompt) and token in chat.end_tokens) + 1
        found.append((ids[:end], [*[-100] * len(prompt), *ids[len(prompt) : end]]))
    return found


def peft_model(folder: Path, adapter: bytes) -> Any:
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model: Any = get_peft_model(plain, LoraConfig(r=16, lora_alpha=32, target_modules=TARGETS, task_type="CAUSAL_LM"))
    set_peft_model_state_dict(model, load(adapter))
    return model.eval()


@contextmanager
def in_64_bits() -> Iterator[None]:
    """What models compute in 32 bits whatever their weights have, norms and positions, has 64 within the context."""
    with patch.object(torch, "float32", torch.float64), patch.object(torch, "float", torch.float64):
        yield


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
        logits = model(input_ids=ids, attention_mask=there).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        schedule.step()
        found.append([loss.item(), norm.item()])
    return found
