"""The hyperparameters of fine-tuning services, as options of our methods."""

import math
from collections.abc import Mapping
from typing import Any

import attrs

from modelyard.domain.training_config import DPOConfig, RLConfig, SFTConfig, TrainingConfig
from modelyard.errors import InvalidInput
from modelyard.parts.loops.config import LoopConfig

AUTO_EPOCHS: Mapping[str, int] = {"supervised": 3, "dpo": 1, "reinforcement": 1}
"""How often the rows are trained on where nothing else is requested."""

AUTO_TASKS = 32
_COMMON = {"n_epochs": int, "batch_size": int, "learning_rate_multiplier": float}
_KNOWN: Mapping[str, Mapping[str, type]] = {
    "supervised": _COMMON,
    "dpo": {**_COMMON, "beta": float},
    "reinforcement": {**_COMMON, "compute_multiplier": float, "eval_interval": int},
}
_MOST = {"n_epochs": 100, "batch_size": 1024, "eval_interval": 10_000}
_DEFAULT_RATE = {
    "supervised": SFTConfig().learning_rate,
    "dpo": DPOConfig().learning_rate,
    "reinforcement": RLConfig().learning_rate,
}


_OURS = {"supervised": SFTConfig, "dpo": DPOConfig, "reinforcement": RLConfig}


def own_options(method: str, config: type[TrainingConfig]) -> frozenset[str]:
    """Return the options that a configuration has besides those of its method: hyperparameters of the same names."""
    names = ({field.name for field in attrs.fields(one)} for one in (config, _OURS[method]))
    return frozenset(next(names) - next(names) - {"seed"})


def checked(method: str, given: Mapping[str, Any], config: type[TrainingConfig]) -> dict[str, Any]:
    """Return the hyperparameters that were given, without the "auto" ones. Raises `InvalidInput`."""
    found, own = {}, own_options(method, config)
    for name, value in given.items():
        if value in (None, "auto") or (name == "reasoning_effort" and value == "default"):
            continue
        if name in own:
            found[name] = value
            continue
        kind = _KNOWN[method].get(name)
        if kind is None:
            hint = config.hint(name, own | _KNOWN[method].keys())
            raise InvalidInput.at("hyperparameters", name, msg=f"is not supported with the method {method!r}{hint}")
        if isinstance(value, bool) or not isinstance(value, int if kind is int else int | float):
            raise InvalidInput.at("hyperparameters", name, msg=f'must be "auto" or a{" whole" * (kind is int)} number')
        most = _MOST.get(name, math.inf)
        if not 0 < value <= most or not math.isfinite(value):
            msg = f"must be above 0{f', and at most {most}' if math.isfinite(most) else ''}"
            raise InvalidInput.at("hyperparameters", name, msg=msg)
        found[name] = value
    return found


def _others(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that only a trainer knows."""
    known = {name for names in _KNOWN.values() for name in names}
    return {name: value for name, value in given.items() if name not in known}


def options_of(method: str, given: Mapping[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {
        "epochs": given.get("n_epochs", AUTO_EPOCHS[method]),
        "learning_rate": _rate(method, given),
    }
    return options | {name: given[name] for name in ("batch_size", "beta") if name in given} | _others(given)


def loop_options_of(given: Mapping[str, Any], tasks: int) -> dict[str, Any]:
    per_round = min(given.get("batch_size", AUTO_TASKS), tasks)
    rounds = math.ceil(given.get("n_epochs", AUTO_EPOCHS["reinforcement"]) * tasks / per_round)
    samples = round(LoopConfig().samples * given.get("compute_multiplier", 1))
    return {
        "rounds": rounds,
        "tasks_per_round": per_round,
        "samples": min(max(samples, 2), 128),
        "learning_rate": _rate("reinforcement", given),
        "evaluate_every": given.get("eval_interval", 1),
        **_others(given),
    }


def effective(method: str, config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "n_epochs": given.get("n_epochs", AUTO_EPOCHS[method]),
        "batch_size": config.get("tasks_per_round") if method == "reinforcement" else config["batch_size"],
        "learning_rate_multiplier": given.get("learning_rate_multiplier", 1.0),
        **({"beta": config["beta"]} if method == "dpo" else {}),
        **{name: given[name] for name in ("compute_multiplier", "eval_interval") if name in given},
        **_others(given),
    }


def _rate(method: str, given: Mapping[str, Any]) -> float:
    rate = _DEFAULT_RATE[method]
    assert not isinstance(rate, tuple)
    return rate * float(given.get("learning_rate_multiplier", 1.0))
