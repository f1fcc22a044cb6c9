"""The types of declarative scorers, and how one is read from JSON data."""

import math
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

import attrs

from modelyard.domain.evaluation.formula import FormulaError, read_formula
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
from modelyard.domain.record import frozen_mapping
from modelyard.errors import InvalidInput, Problem

MAX_PARTS = 20


@attrs.frozen
class Combined(DeclarativeScorer):
    """A number that a formula makes of the scores of others; true counts as 1, false as 0.

    `scorers` are declarative ones, as data, by the names that stand in `formula`: `0.8 * right + 0.2 * (1 - long)`. It
    has `+ - * /`, `^`, brackets, and `min max abs floor ceil exp sqrt log`. There is no score where one of them gives
    none, or where the formula does not come to a number.
    """

    type = "combined"
    scorers: Mapping[str, Any] = attrs.field(converter=frozen_mapping)
    formula: str

    def __attrs_post_init__(self) -> None:
        parts = self.parts
        try:
            used = read_formula(self.formula).names
        except FormulaError as error:
            raise InvalidInput.at("formula", msg=str(error)) from None
        if used != parts.keys():
            strange = sorted(used ^ parts.keys())
            raise InvalidInput.at(
                "formula", msg=f"must use each of the scorers, and nothing else: {', '.join(strange)}"
            )

    @property
    def parts(self) -> Mapping[str, DeclarativeScorer]:
        if not 0 < len(self.scorers) <= MAX_PARTS:
            raise InvalidInput.at("scorers", msg=f"must be from 1 to {MAX_PARTS}")
        return {name: _part(name, plain) for name, plain in self.scorers.items()}


def _is_combined(plain: Any) -> bool:
    return isinstance(plain, Mapping) and plain.get("type") == Combined.type


def _part(name: str, plain: Any) -> DeclarativeScorer:
    if not isinstance(plain, Mapping):
        raise InvalidInput.at("scorers", name, msg="must be a declarative scorer, as data")
    below = plain.get("scorers") if _is_combined(plain) else None
    if isinstance(below, Mapping) and any(map(_is_combined, below.values())):
        raise InvalidInput.at("scorers", name, msg="combines what is combined itself; combine it in one formula")
    try:
        return rule_of(plain)
    except InvalidInput as wrong:
        raise wrong.below("scorers", name) from None


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
        Combined,
    )
}


def rule_of(plain: Mapping[str, Any]) -> DeclarativeScorer:
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
