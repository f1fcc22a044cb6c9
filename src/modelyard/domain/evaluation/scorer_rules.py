"""The types of declarative scorers, and how one is read from JSON data."""

import math
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

import attrs

from modelyard.domain.evaluation.scorers import (
    Contains,
    DeclarativeScorer,
    ExactMatch,
    JsonEqual,
    LlmJudge,
    Numeric,
    RegularExpression,
)
from modelyard.domain.evaluation.structure_scorers import JsonPath, ToolCalls
from modelyard.domain.evaluation.text_scorers import Fuzzy, OneOf, RougeL, TokenF1
from modelyard.errors import InvalidInput, Problem

RULES: Mapping[str, type[DeclarativeScorer]] = {
    rule.type: rule
    for rule in (
        ExactMatch,
        OneOf,
        Contains,
        RegularExpression,
        Numeric,
        JsonEqual,
        JsonPath,
        ToolCalls,
        Fuzzy,
        TokenF1,
        RougeL,
        LlmJudge,
    )
}
"""Every declarative scorer, by the name of its type."""


def rule_of(plain: Mapping[str, Any]) -> DeclarativeScorer:
    """Return the declarative scorer that JSON data describe: `type`, and its fields. Raises `InvalidInput`."""
    kind = plain.get("type")
    if not isinstance(kind, str) or kind not in RULES:
        raise InvalidInput.at("type", msg=f"must be one of {', '.join(sorted(RULES))}")
    given = {name: value for name, value in plain.items() if name not in ("type", "name") and value is not None}
    fields = {field.name: field for field in attrs.fields(RULES[kind])}
    problems = [
        Problem((name,), f"is not a field of {kind}{_near(name, fields)}")
        for name in sorted(given.keys() - fields.keys())
    ]
    problems += [Problem((name,), "is required", "missing") for name in sorted(_required(fields) - given.keys())]
    problems += [problem for name in fields if name in given for problem in _misfits(fields[name], given[name])]
    if problems:
        raise InvalidInput(problems)
    return RULES[kind](**given)


def _near(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _required(fields: Mapping[str, "attrs.Attribute[Any]"]) -> set[str]:
    return {name for name, field in fields.items() if field.default is attrs.NOTHING}


def _misfits(field: "attrs.Attribute[Any]", value: Any) -> list[Problem]:
    fits, what = _FITTING[field.type]
    return [] if fits(value) else [Problem((field.name,), f"must be {what}")]


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


_FITTING: Mapping[Any, tuple[Callable[[object], bool], str]] = {
    str: (lambda value: isinstance(value, str), "a string"),
    bool: (lambda value: isinstance(value, bool), "true or false"),
    float: (_is_amount, "a number from 0"),
    Mapping[str, Any]: (lambda value: isinstance(value, Mapping), "an object"),
}
