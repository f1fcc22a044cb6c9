"""Graders of fine-tuning services, read as scorers."""

import re
from collections.abc import Mapping
from typing import Any, TypeGuard

from modelyard.domain.evaluation.scorer_rules import rule_of
from modelyard.errors import InvalidInput

_OUTPUT = re.compile(r"\{\{\s*sample\.output_text\s*\}\}")
_ITEM = re.compile(r"\{\{\s*item\.(\w{1,128})\s*\}\}")
_BRACES = re.compile(r"[{}]")
_CHECKS: Mapping[str, Mapping[str, Any]] = {
    "eq": {"type": "exact_match"},
    "ne": {"type": "exact_match"},
    "like": {"type": "contains"},
    "ilike": {"type": "contains", "ignore_case": True},
}
_METRICS: Mapping[str, Mapping[str, Any]] = {"fuzzy_match": {"type": "fuzzy"}, "rouge_l": {"type": "rouge_l"}}
_PARAMETERS = {"scorers": "graders", "formula": "calculate_output"}
"""The parameters of a grader `multi`, by those of the scorer that it is."""
_WHY_NOT: Mapping[str, str] = {
    "python": "is source code of a client, which is kept and never run here; give the function to "
    "platform.training.loop as its reward, on the host",
}


def reward_of(grader: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if not isinstance(grader, Mapping):
        raise InvalidInput.at("grader", msg="is required with the method 'reinforcement'", type="missing")
    if grader.get("type") != "multi":
        return _scorer(grader, ("string_check", "text_similarity", "score_model", "multi"))
    _only(grader, "graders", "calculate_output")
    graders, formula = grader.get("graders"), grader.get("calculate_output")
    if not isinstance(graders, Mapping) or not isinstance(formula, str):
        msg = "must be graders by their names, and calculate_output a formula of these names"
        raise InvalidInput.at("grader", "graders", msg=msg)
    parts = {str(name): _named(str(name), one) for name, one in graders.items()}
    return _combined(parts, formula)


def _named(name: str, grader: Any) -> Mapping[str, Any]:
    if not isinstance(grader, Mapping):
        raise InvalidInput.at("grader", "graders", name, msg="must be a grader")
    try:
        return _scorer(grader, ("string_check", "text_similarity", "score_model", "label_model"))
    except InvalidInput as wrong:
        raise InvalidInput.at(
            "grader", "graders", name, *wrong.problems[0].loc[1:], msg=wrong.problems[0].msg
        ) from None


def _scorer(grader: Mapping[str, Any], known: tuple[str, ...]) -> Mapping[str, Any]:
    kind = str(grader.get("type"))
    if kind not in known:
        msg = _WHY_NOT.get(kind, f"must be one of {', '.join(known)}; give other rewards to platform.training.loop")
        raise InvalidInput.at("grader", "type", msg=msg)
    if kind == "string_check":
        scorer = _compared(grader, "operation", _CHECKS)
        return _combined({"it": scorer}, "1 - it") if grader["operation"] == "ne" else scorer
    if kind == "text_similarity":
        return _compared(grader, "evaluation_metric", _METRICS)
    return _score_model(grader) if kind == "score_model" else _label_model(grader)


def _combined(scorers: Mapping[str, Mapping[str, Any]], formula: str) -> Mapping[str, Any]:
    scorer = {"type": "combined", "scorers": scorers, "formula": formula}
    try:
        rule_of(scorer)
    except InvalidInput as wrong:
        name, *rest = wrong.problems[0].loc
        raise InvalidInput.at("grader", _PARAMETERS[str(name)], *rest, msg=wrong.problems[0].msg) from None
    return scorer


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


# ---- graders that ask a model


def _score_model(grader: Mapping[str, Any]) -> Mapping[str, Any]:
    _only(grader, "model", "input", "range")
    judge, bounds = {**_judge(grader), "scale": "number"}, grader.get("range")
    if bounds is None:
        return judge
    if not isinstance(bounds, list) or len(bounds) != 2 or not all(_is_number(one) for one in bounds):
        raise InvalidInput.at("grader", "range", msg="must be the lowest and the highest score, two numbers")
    return _combined({"it": judge}, f"min(max(it, {bounds[0]!r}), {bounds[1]!r})")


def _label_model(grader: Mapping[str, Any]) -> Mapping[str, Any]:
    _only(grader, "model", "input", "labels", "passing_labels")
    judge, labels, passing = _judge(grader), grader.get("labels"), grader.get("passing_labels")
    if not _are_labels(labels):
        raise InvalidInput.at("grader", "labels", msg="must be strings without braces")
    if not _are_labels(passing) or not set(passing) <= set(labels):
        raise InvalidInput.at("grader", "passing_labels", msg="must be some of the labels")
    asked = f"{judge['prompt']}\n\nAnswer with one of these labels, and nothing else: {', '.join(labels)}"
    return {**judge, "prompt": asked, "scale": "labels", "labels": {label: label in passing for label in labels}}


def _judge(grader: Mapping[str, Any]) -> dict[str, Any]:
    model, messages = grader.get("model"), grader.get("input")
    if not isinstance(model, str):
        raise InvalidInput.at("grader", "model", msg="must be the name of a model")
    single = messages[0] if isinstance(messages, list) and len(messages) == 1 else None
    content = single.get("content") if isinstance(single, Mapping) else None
    if not isinstance(single, Mapping) or single.get("role") != "user" or not isinstance(content, str):
        raise InvalidInput.at("grader", "input", msg="must be one message of the user whose content is a string")
    if _BRACES.search(_ITEM.sub("", _OUTPUT.sub("", content))):
        raise InvalidInput.at("grader", "input", msg="must have no braces but those of item and sample.output_text")
    return {"type": "llm_judge", "model": model, "prompt": _ITEM.sub(r"{\1}", _OUTPUT.sub("{output}", content))}


def _only(grader: Mapping[str, Any], *known: str) -> None:
    for name in grader.keys() - {"type", "name", *known}:
        if grader[name] is not None:
            raise InvalidInput.at("grader", name, msg="is not supported; leave it out")


def _are_labels(found: Any) -> TypeGuard[list[str]]:
    """Return whether these are labels, at least one, that fit into a prompt."""
    if not isinstance(found, list) or not found:
        return False
    return all(isinstance(one, str) and one.strip() and not _BRACES.search(one) for one in found)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
