"""What the hyperparameters and graders of fine-tuning services mean here: options of our methods, and rewards."""

import math
import re
from collections.abc import Mapping
from typing import Any

from modelyard.domain.training_config import DPOConfig, LoopConfig, RLConfig, SFTConfig
from modelyard.errors import InvalidInput

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


def checked(method: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters that were given, without those that are "auto". Raises `InvalidInput`."""
    found = {}
    for name, value in given.items():
        if value in (None, "auto") or (name == "reasoning_effort" and value == "default"):
            continue
        kind = _KNOWN[method].get(name)
        if kind is None:
            raise InvalidInput.at("hyperparameters", name, msg=f"is not supported with the method {method!r}")
        if isinstance(value, bool) or not isinstance(value, int if kind is int else int | float):
            raise InvalidInput.at("hyperparameters", name, msg=f'must be "auto" or a{" whole" * (kind is int)} number')
        most = _MOST.get(name, math.inf)
        if not 0 < value <= most or not math.isfinite(value):
            msg = f"must be above 0{f', and at most {most}' if math.isfinite(most) else ''}"
            raise InvalidInput.at("hyperparameters", name, msg=msg)
        found[name] = value
    return found


def options_of(method: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a supervised or a DPO job, with every default that is ours."""
    options: dict[str, Any] = {
        "epochs": given.get("n_epochs", AUTO_EPOCHS[method]),
        "learning_rate": _rate(method, given),
    }
    return options | {name: given[name] for name in ("batch_size", "beta") if name in given}


def loop_options_of(given: Mapping[str, Any], tasks: int) -> dict[str, Any]:
    """Return the options of a loop on so many tasks."""
    per_round = min(given.get("batch_size", AUTO_TASKS), tasks)
    rounds = math.ceil(given.get("n_epochs", AUTO_EPOCHS["reinforcement"]) * tasks / per_round)
    samples = round(LoopConfig().samples * given.get("compute_multiplier", 1))
    return {
        "rounds": rounds,
        "tasks_per_round": per_round,
        "samples": min(max(samples, 2), 128),
        "learning_rate": _rate("reinforcement", given),
        "evaluate_every": given.get("eval_interval", 1),
    }


def effective(method: str, config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters in force, as services show them."""
    return {
        "n_epochs": given.get("n_epochs", AUTO_EPOCHS[method]),
        "batch_size": config.get("tasks_per_round") if method == "reinforcement" else config["batch_size"],
        "learning_rate_multiplier": given.get("learning_rate_multiplier", 1.0),
        **({"beta": config["beta"]} if method == "dpo" else {}),
        **{name: given[name] for name in ("compute_multiplier", "eval_interval") if name in given},
    }


def _rate(method: str, given: Mapping[str, Any]) -> float:
    rate = _DEFAULT_RATE[method]
    assert not isinstance(rate, tuple)
    return rate * float(given.get("learning_rate_multiplier", 1.0))


# ---- graders -------------------------------------------------------------------------------------------------------

_OUTPUT = re.compile(r"\{\{\s*sample\.output_text\s*\}\}")
_ITEM = re.compile(r"\{\{\s*item\.(\w{1,128})\s*\}\}")
_BRACES = re.compile(r"[{}]")
_CHECKS: Mapping[str, Mapping[str, Any]] = {
    "eq": {"type": "exact_match"},
    "like": {"type": "contains"},
    "ilike": {"type": "contains", "ignore_case": True},
}
_METRICS: Mapping[str, Mapping[str, Any]] = {"fuzzy_match": {"type": "fuzzy"}, "rouge_l": {"type": "rouge_l"}}


def reward_of(grader: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the scorer, as data, that a grader is. Raises `InvalidInput` naming what is not supported of it."""
    if not isinstance(grader, Mapping):
        raise InvalidInput.at("grader", msg="is required with the method 'reinforcement'", type="missing")
    kind = grader.get("type")
    if kind == "string_check":
        return _compared(grader, "operation", _CHECKS)
    if kind == "text_similarity":
        return _compared(grader, "evaluation_metric", _METRICS)
    if kind == "score_model":
        return _judge(grader)
    msg = "must be 'string_check', 'text_similarity' or 'score_model'; give other rewards to platform.training.loop"
    raise InvalidInput.at("grader", "type", msg=msg)


def _compared(grader: Mapping[str, Any], name: str, known: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    scorer = known.get(str(grader.get(name)))
    if scorer is None:
        raise InvalidInput.at("grader", name, msg=f"must be one of {', '.join(known)}")
    if not _OUTPUT.fullmatch(str(grader.get("input"))):
        raise InvalidInput.at("grader", "input", msg='must be "{{sample.output_text}}"')
    field = _ITEM.fullmatch(str(grader.get("reference")))
    if field is None:
        raise InvalidInput.at("grader", "reference", msg='must be "{{item.<a field of the rows>}}"')
    return {**scorer, "expected": field[1]}


def _judge(grader: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in grader.keys() - {"type", "name", "model", "input", "range"}:
        if grader[name] is not None:
            raise InvalidInput.at("grader", name, msg="is not supported; leave it out")
    model, messages = grader.get("model"), grader.get("input")
    if not isinstance(model, str):
        raise InvalidInput.at("grader", "model", msg="must be the name of a model")
    single = messages[0] if isinstance(messages, list) and len(messages) == 1 else None
    content = single.get("content") if isinstance(single, Mapping) else None
    if not isinstance(single, Mapping) or single.get("role") != "user" or not isinstance(content, str):
        raise InvalidInput.at("grader", "input", msg="must be one message of the user whose content is a string")
    if _BRACES.search(_ITEM.sub("", _OUTPUT.sub("", content))):
        raise InvalidInput.at("grader", "input", msg="must have no braces but those of item and sample.output_text")
    prompt = _ITEM.sub(r"{\1}", _OUTPUT.sub("{output}", content))
    return {"type": "llm_judge", "model": model, "prompt": prompt, "scale": "number"}
