"""The preference loss and its gradient, against TRL's for the same log-probabilities."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from trl.trainer.dpo_trainer import DPOTrainer

from modelyard.domain.training_config import DPOConfig
from modelyard.trainers.losses import preference_loss

LENGTHS = (5, 3, 1, 7, 4, 4)
"""Tokens of each answer: chosen and rejected in turns."""


def rows(seed: int, lengths: tuple[int, ...]) -> list[list[float]]:
    numbers = torch.Generator().manual_seed(seed)
    return [(-3 * torch.rand(length, generator=numbers, dtype=torch.float64)).tolist() for length in lengths]


def trl_loss(new: Tensor, mask: Tensor, reference: Tensor, config: DPOConfig, kind: str) -> tuple[Tensor, Any]:
    """TRL's loss, of a model that returns these log-probabilities: all chosen answers before all rejected ones."""
    metrics: dict[str, dict[str, list[float]]] = {"train": {name: [] for name in METRICS}}
    accelerator = SimpleNamespace(
        device=torch.device("cpu"), gather_for_metrics=lambda found: found, gather=lambda found: found
    )
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True),
        accelerator=accelerator,
        aux_loss_enabled=False,
        ld_alpha=None,
        precompute_ref_logps=True,
        f_divergence_type="reverse_kl",
        loss_types=[kind],
        loss_weights=[1.0],
        beta=config.beta,
        label_smoothing=config.label_smoothing,
        use_weighting=False,
        _metrics=metrics,
        _total_train_tokens=0,
        _tp_size=1,
    )
    nothing = torch.zeros_like(new)
    outputs = SimpleNamespace(log_probs=new * mask, entropy=nothing, mean_logits=nothing, is_top1=nothing.bool())
    whole = torch.cat([torch.zeros(len(mask), 1, dtype=torch.long), mask.long()], dim=1)
    chosen, rejected = (reference * mask).sum(dim=1).chunk(2)
    inputs = {
        "input_ids": torch.zeros_like(whole),
        "attention_mask": torch.ones_like(whole),
        "completion_mask": whole,
        "ref_chosen_logps": chosen,
        "ref_rejected_logps": rejected,
    }
    return DPOTrainer._compute_loss(trainer, lambda **_: outputs, inputs, False), metrics["train"]


METRICS = (
    *("entropy", "num_tokens", "logits/chosen", "logits/rejected", "mean_token_accuracy", "logps/chosen"),
    *("rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins", "logps/rejected"),
)


def padded(found: list[list[float]]) -> tuple[Tensor, Tensor]:
    """Rows, all chosen ones first, and which of their places are tokens."""
    ordered = found[::2] + found[1::2]
    width = max(map(len, ordered))
    values = torch.tensor([[*row, *[0.0] * (width - len(row))] for row in ordered], dtype=torch.float64)
    mask = torch.tensor([[1.0] * len(row) + [0.0] * (width - len(row)) for row in ordered], dtype=torch.float64)
    return values, mask


@pytest.mark.parametrize(
    ("config", "kind", "lengths"),
    [
        (DPOConfig(), "sigmoid", LENGTHS),
        (DPOConfig(beta=0.7), "sigmoid", LENGTHS),
        (DPOConfig(beta=0.3, label_smoothing=0.2), "aot", LENGTHS[:2]),  # of one pair this is DPO with smoothed labels
    ],
)
def test_loss_gradient_and_metrics_are_those_of_trl(config: DPOConfig, kind: str, lengths: tuple[int, ...]) -> None:
    new, reference = rows(1, lengths), rows(2, lengths)
    values, mask = padded(new)
    values.requires_grad_()
    theirs, metrics = trl_loss(values, mask, padded(reference)[0], config, kind)
    theirs.backward()
    ours = preference_loss(new, reference, config)
    assert ours.value == pytest.approx(theirs.item(), rel=1e-12)
    order = [*range(0, len(new), 2), *range(1, len(new), 2)]
    for place, row in zip(order, values.grad, strict=True):
        assert ours.derivatives[place] == pytest.approx(row[: len(new[place])].tolist(), rel=1e-9)
    for name, theirs_is in {
        "chosen_reward": "rewards/chosen",
        "rejected_reward": "rewards/rejected",
        "accuracy": "rewards/accuracies",
        "margin": "rewards/margins",
    }.items():
        assert ours.metrics[name] == pytest.approx(metrics[theirs_is][-1], rel=1e-6), name
