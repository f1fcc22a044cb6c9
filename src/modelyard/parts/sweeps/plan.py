"""The trials of a sweep, and how many epochs each gets: pure functions of what is requested."""

import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any

from modelyard.domain.training_config import BatchedConfig, TrainingConfig
from modelyard.errors import InvalidInput
from modelyard.formats.json import as_json
from modelyard.platform.training.methods import Method, resolved
from modelyard.platform.training.service import check_options

MOST_TRIALS = 256
METHODS_SWEPT = ("sft", "dpo")
NOT_SWEPT = {
    "rl": "it trains on given rewards, and no loss on held-out rows compares its trials",
    "distill": "its rows are scored by a teacher as it samples, and no loss on held-out rows compares its trials",
}
"""Why the other methods are not swept: start a job or a loop for each setting, and compare their checkpoints."""


def axes_of(options: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the options that are a list, with their values. Raises `InvalidInput` if there is none."""
    axes = {
        name: [as_json(value, at=(name,)) for value in values]
        for name, values in options.items()
        if isinstance(values, Sequence) and not isinstance(values, str)
    }
    for name, values in axes.items():
        if not values:
            raise InvalidInput.at(name, msg="must have at least one value")
        twice = next((value for at, value in enumerate(values) if value in values[:at]), None)
        if twice is not None:
            raise InvalidInput.at(name, msg=f"has the value {twice!r} twice")
    if not axes:
        raise InvalidInput.at("options", msg="none has a list of values, so there is one trial alone; train it by sft")
    return axes


def trials_of(axes: Mapping[str, Sequence[Any]], samples: int | None, seed: int) -> list[dict[str, Any]]:
    """Return every combination in order, or so many `samples` of them. Raises `InvalidInput` if there are too many."""
    count = prod(map(len, axes.values()))
    if samples is not None and (type(samples) is not int or not 1 <= samples <= count):
        raise InvalidInput.at("samples", msg=f"must be a whole number from 1 to {count}, the number of combinations")
    if (samples or count) > MOST_TRIALS:
        msg = f"makes {count} combinations, and a sweep has {MOST_TRIALS} trials at most; give samples"
        raise InvalidInput.at("options", msg=msg)
    chosen = range(count) if samples is None else sorted(random.Random(seed).sample(range(count), samples))  # noqa: S311 - a seeded choice
    return [_combination(axes, at) for at in chosen]


def _combination(axes: Mapping[str, Sequence[Any]], at: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in reversed([*axes]):
        at, place = divmod(at, len(axes[name]))
        found[name] = axes[name][place]
    return {name: found[name] for name in axes}


def configs_of(
    method: Method, options: Mapping[str, Any], trials: Sequence[Mapping[str, Any]], rows: int | None = None
) -> list[TrainingConfig]:
    """Return the configuration of each trial. Raises TypeError for an unknown option, `InvalidInput` for a value."""
    check_options(method.kind, method.options, options, method.config)
    configs = [resolved(method.config, {**options, **trial}) for trial in trials]
    for config in configs if rows is not None else ():
        config.check_rows(rows or 0)
    return configs


def check_halving(halving: int | None, axes: Mapping[str, Any], config: TrainingConfig) -> None:
    """Raise `InvalidInput` unless the trials can be stopped early."""
    if halving is None:
        return
    if type(halving) is not int or not 2 <= halving <= MOST_TRIALS:
        msg = f"must be a whole number from 2 to {MOST_TRIALS}: one of so many trials goes on"
        raise InvalidInput.at("halving", msg=msg)
    if "epochs" in axes or not isinstance(config, BatchedConfig) or config.epochs < 2:
        msg = "must be one number, 2 or more: halving gives all of them to the best trials, and few to the others"
        raise InvalidInput.at("epochs", msg=msg)
    rates = axes.get("learning_rate", [config.learning_rate])
    if any(isinstance(rate, Sequence) for rate in rates):
        raise InvalidInput.at("learning_rate", msg="must be one number a trial: halving trains in several jobs")


def rungs_of(trials: int, epochs: int, halving: int | None) -> list[int]:
    """Return the epochs that are trained at each rung of successive halving (Jamieson and Talwalkar 2016).

    >>> rungs_of(8, 4, 2), rungs_of(4, 16, 2), rungs_of(9, 9, 3), rungs_of(6, 2, None)
    ([1, 1, 2], [1, 1, 14], [1, 2, 6], [2])
    """
    reached, total, left = [0], 1, trials
    while halving is not None and total < epochs and left > 1:
        reached.append(total)
        total, left = total * halving, max(1, left // halving)
    return [after - before for before, after in pairwise([*reached, epochs])]


def best_of(scores: Mapping[int, float], going: int, halving: int) -> list[int]:
    """Return the trials that go on: of those that were `going` one of `halving`, the lowest score first, at least one.

    >>> best_of({1: 0.5, 2: 0.25, 3: 0.25, 4: 1.0}, 5, 2)
    [2, 3]
    """
    ranked = sorted(scores, key=lambda number: (scores[number], number))
    return sorted(ranked[: max(1, going // halving)])
