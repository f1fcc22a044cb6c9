"""The policy loss equals that of the public RL client's own trainer, in value and derivatives, on random inputs."""

import importlib.util
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from modelyard.domain.training_config import RLConfig
from modelyard.trainers.credits import Credit
from modelyard.trainers.losses import TrainedSequence, policy_loss

spec = importlib.util.find_spec("art")
if spec is None or spec.origin is None:
    pytest.skip("the RL client has a lane of its own: tests/clients/lanes.py art", allow_module_level=True)
HOME = Path(spec.origin).parent
WITH_TORCH = os.environ.get("MODELYARD_TORCH_PYTHON", sys.executable)

CASES = 600
LEVELS = ("token", "sequence", "average", "geometric_average")
OPTIONS: dict[str, tuple[Any, ...]] = {
    "importance_sampling_level": LEVELS,
    "ppo": (False, True),
    "epsilon": (0.2, 1.0),
    "epsilon_high": (0.3, 4.0),
    "max_negative_advantage_importance_sampling_weight": (None, 1.2),
    "mask_prob_ratio": (False, True),
    "kimi_k2_tau": (None, 0.3),
    "kl_penalty_coef": (0.0, 0.5),
    "truncated_importance_sampling": (None, 0.8, 2.0),
}


@attrs.frozen
class Case:
    """Sequences to train on, their configuration, and whether the old log-probabilities were recomputed."""

    rows: tuple[TrainedSequence, ...]
    config: dict[str, Any]
    prompts: tuple[int, ...]
    """How many tokens that are not trained stand before each sequence."""

    def columns(self) -> dict[str, Any]:
        """Lay the sequences out one after the other, as the client packs them."""
        columns: dict[str, list[Any]] = {}
        for number, (row, prompt) in enumerate(zip(self.rows, self.prompts, strict=True), start=1):
            length = len(row.new)
            reported = {
                "new": (-3.0, row.new),
                "logprobs": (None, row.old),
                "original_logprobs": (None, row.sampled),
                "reference": (-2.5, row.reference),
                "advantages": (0.0, [row.credit.advantage] * length),
                "weights": (0.0, [row.credit.weight] * length),
                "mask": (False, [True] * length),
                "groups": (number, [number] * length),
            }
            for name, (pad, values) in reported.items():
                if values is not None:
                    columns[name] = [*columns.get(name, ()), *[pad] * prompt, *values]
        return {**columns, "config": {name: value for name, value in self.config.items() if value is not None}}


def cases() -> Iterator[Case]:
    """Generate cases: all levels, both losses and every option, alone and together."""
    for seed in range(CASES):
        chance = random.Random(seed)
        config = {name: chance.choice(values) for name, values in OPTIONS.items()}
        recomputed, missing = chance.random() < 0.5, chance.choice((0.0, 0.3))
        rows = tuple(_row(chance, config, recomputed, missing) for _ in range(chance.randint(1, 4)))
        yield Case(rows, config, tuple(chance.randint(0, 3) for _ in rows))


def _row(chance: random.Random, config: dict[str, Any], recomputed: bool, missing: float) -> TrainedSequence:
    def near(values: list[float]) -> list[float]:
        return [value + chance.gauss(0, 0.5) for value in values]

    def known(values: list[float]) -> list[float | None]:
        return [None if chance.random() < missing else value for value in values]

    new = [-chance.uniform(0.1, 4.0) for _ in range(chance.randint(2, 6))]
    return TrainedSequence(
        Credit(0, 0, chance.gauss(0, 1), chance.uniform(0.5, 2)),
        new,
        near(new) if recomputed else known(near(new)),
        sampled=known(near(new)) if recomputed else None,
        reference=near(new) if config["kl_penalty_coef"] else None,
    )


def test_losses_and_derivatives_equal_those_of_the_clients_trainer() -> None:
    chosen = list(cases())
    script = Path(__file__).with_name("art_loss.py")
    done = subprocess.run(
        [WITH_TORCH, str(script), str(HOME)],
        input=json.dumps([case.columns() for case in chosen]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for case, (value, derivatives) in zip(chosen, json.loads(done.stdout), strict=True):
        given = {name: option for name, option in case.config.items() if option is not None}
        ours = policy_loss(case.rows, RLConfig(**given))
        mask = case.columns()["mask"]
        theirs = [slope for slope, trained in zip(derivatives, mask, strict=True) if trained]
        flat = [slope for row in ours.derivatives for slope in row]
        assert ours.value == pytest.approx(value, rel=1e-6, abs=1e-6), case
        assert flat == pytest.approx(theirs, rel=1e-6, abs=1e-6), case
        assert not any(slope for slope, trained in zip(derivatives, mask, strict=True) if not trained)
        assert math.isfinite(value)
