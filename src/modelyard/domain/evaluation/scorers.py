"""Declarative scorers: scorers that are data, stored with the run (specification 4.5), and their formulas."""

import ast
import json
import math
import operator
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from decimal import Decimal
from functools import lru_cache, partial
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, ClassVar

import attrs

from modelyard import safe_regex as patterns
from modelyard.domain.record import EMPTY, frozen_mapping
from modelyard.errors import InvalidInput
from modelyard.stated import exact, label_text, number_in, rating_in, verdict_in

MAX_OUTPUT = 20_000
"""Characters of an output in which a pattern is searched; a longer output is not scored."""

MAX_WORK = 500_000
"""Steps that the search for a pattern may take: about a second at most."""

_SLOT = re.compile(r"\{(\w{1,128})\}")
_AMOUNT = {"schema": {"minimum": 0}}


class Unscored(Exception):
    """Raised by a scorer that gives no score although nothing has failed. Its message is the reason."""


@attrs.frozen
class DeclarativeScorer:
    """The common part of declarative scorers: the name of the `type`, and the fields that the class declares. See
    `scorer_rules.rule_of`."""

    type: ClassVar[str]

    @property
    def asked_for(self) -> frozenset[str]:
        """The fields of a row that it reads, or is asked about."""
        return frozenset({self.expected}) if hasattr(self, "expected") else frozenset()

    def plain(self) -> Mapping[str, Any]:
        fields = {field.name: getattr(self, field.name) for field in attrs.fields(type(self))}
        return {"type": self.type, **{name: dict(v) if isinstance(v, Mapping) else v for name, v in fields.items()}}


@attrs.frozen
class OwnRule(DeclarativeScorer, ABC):
    @abstractmethod
    def score(self, output: Any, row: Mapping[str, Any]) -> Any: ...


@attrs.frozen
class ExactMatch(OwnRule):
    """Whether the output is the row's field `expected`, ignoring white space around both."""

    type = "exact_match"
    expected: str = "expected"
    ignore_case: bool = False

    def score(self, output: Any, row: Mapping[str, Any]) -> bool:
        given, wanted = _texts(output, row[self.expected], self.ignore_case)
        return given.strip() == wanted.strip()


@attrs.frozen
class Contains(OwnRule):
    """Whether the output contains the row's field `expected`."""

    type = "contains"
    expected: str = "expected"
    ignore_case: bool = False

    def score(self, output: Any, row: Mapping[str, Any]) -> bool:
        given, wanted = _texts(output, row[self.expected], self.ignore_case)
        return wanted in given


@attrs.frozen
class RegularExpression(OwnRule):
    """Whether a pattern matches somewhere in the output.

    Patterns are of the simple kind of `safe_regex`, which never backtracks. An output of more than `MAX_OUTPUT`
    characters, or one that takes more than `MAX_WORK` steps, is not scored.
    """

    type = "regular_expression"
    pattern: str

    def __attrs_post_init__(self) -> None:
        try:
            _read_pattern(self.pattern)
        except patterns.PatternError as error:
            raise InvalidInput.at("pattern", msg=str(error)) from None

    def score(self, output: Any, row: Mapping[str, Any]) -> bool:
        given = text_of(output)
        if len(given) > MAX_OUTPUT:
            raise Unscored(f"the output has more than {MAX_OUTPUT} characters")
        return patterns.matches(_read_pattern(self.pattern), given, _budget(MAX_WORK))


@attrs.frozen
class Numeric(OwnRule):
    """Whether the last number in the output is the row's field `expected`, within the larger of two tolerances.

    `relative` is a share of the expected number. Numbers are compared exactly, as they are written. "1,234" is a
    thousand, "1,5" two numbers, and the hyphen of "3-4" no sign. An output without a number scores False.
    """

    type = "numeric"
    expected: str = "expected"
    absolute: float = attrs.field(default=0.0, metadata=_AMOUNT)
    relative: float = attrs.field(default=0.0, metadata=_AMOUNT)

    def score(self, output: Any, row: Mapping[str, Any]) -> bool:
        wanted, given = number_in(_number_or_text(row[self.expected])), number_in(_number_or_text(output))
        if wanted is None:
            raise Unscored(f"the row's {self.expected!r} holds no number")
        tolerance = max(exact(self.absolute), exact(self.relative) * abs(wanted))
        return given is not None and abs(given - wanted) <= tolerance


@attrs.frozen
class JsonEqual(OwnRule):
    """Whether the output is the same JSON as the row's field `expected`, which may be a value or its text.

    A string that is not the text of JSON stands for itself. The order of members does not matter; 1 equals 1.0 and
    differs from true. An output that is not JSON scores False.
    """

    type = "json_equal"
    expected: str = "expected"

    def score(self, output: Any, row: Mapping[str, Any]) -> bool:
        wanted = row[self.expected]
        with suppress(ValueError, RecursionError):
            wanted = _parsed(wanted)
        try:
            return same_json(_parsed(output), wanted)
        except (ValueError, RecursionError):
            return False


@attrs.frozen
class LlmJudge(DeclarativeScorer):
    """The judgement of a model of the platform: a bool for yes or no, or with `scale` "number" a number.

    With `scale` "labels" it is the value that `labels` gives to the label in the answer, such as `{"good": true}`.
    `{output}` and the names of row fields in `prompt` are replaced by their texts. `options` are those of a completion.
    The judge's usage is recorded apart from that of the model under test.
    """

    type = "llm_judge"
    model: str
    prompt: str
    scale: str = attrs.field(default="yes_no", metadata={"schema": {"enum": ["yes_no", "number", "labels"]}})
    options: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    labels: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)

    def __attrs_post_init__(self) -> None:
        if self.scale not in ("yes_no", "number", "labels"):
            raise InvalidInput.at("scale", msg='must be "yes_no", "number" or "labels"')
        if bool(self.labels) is not (self.scale == "labels"):
            raise InvalidInput.at("labels", msg='must name the labels with the scale "labels", and only with it')
        for label, value in self.labels.items():
            if not label.strip() or not isinstance(value, int | float) or not math.isfinite(value):
                raise InvalidInput.at("labels", label, msg="must be true, false or a number, under a label with words")

    @property
    def asked_for(self) -> frozenset[str]:
        return slots(self.prompt) - {"output"}

    def asks(self, output: Any, row: Mapping[str, Any]) -> str:
        """Return the question for the judge. Placeholders inside an output or a row are not replaced."""
        return fill(self.prompt, {**row, "output": output})

    def read(self, answer: str) -> bool | float:
        """Read the score from a judge's answer. Raises `Unscored`. It is the last number that is not of a scale (7 of
        "7/10"), the last verdict, or the value of the last label; see `modelyard.stated`."""
        if self.scale == "labels":
            return self._labelled(answer)
        found = rating_in(answer) if self.scale == "number" else verdict_in(answer)
        if found is None:
            what = "number" if self.scale == "number" else "yes or no"
            raise Unscored(f"the judge gave no {what}: {answer[-100:]!r}")
        return found

    def _labelled(self, answer: str) -> bool | float:
        words = label_text(answer).casefold()
        ends = {label: _end_of(label.casefold(), words) for label in self.labels}
        last = max(ends, key=lambda label: (ends[label], len(label)))
        if ends[last] < 0:
            raise Unscored(f"the judge gave none of the labels: {answer[:100]!r}")
        value: bool | float = self.labels[last]
        return value


def _end_of(label: str, words: str) -> int:
    at = words.rfind(label)
    while at >= 0:
        around = words[max(at - 1, 0) : at], words[at + len(label) : at + len(label) + 1]
        if not any(letter.isalnum() or letter == "_" for letter in around):
            return at + len(label)
        at = words.rfind(label, 0, at + len(label) - 1)
    return -1


# ---- values --------------------------------------------------------------------------------------------------------


def checked_score(value: Any) -> tuple[Any, str]:
    """Normalise what a scorer returned: the value to store, and why parts of it were dropped ("" if none). A score is a
    bool, a number, a string, None, or a mapping of names to these. A value with `item()`, such as a scalar of an array
    library, is replaced by the result, and by None if it is masked. NaN and infinity become None. Raises TypeError for
    anything else."""
    if value is None:
        return None, "the scorer gave no score"
    if isinstance(value, Mapping):
        parts = {name: checked_score(part) for name, part in value.items()}
        reasons = [f"{name}: {reason}" for name, (part, reason) in parts.items() if reason and value[name] is not None]
        return MappingProxyType({name: part for name, (part, _) in parts.items()}), "; ".join(reasons)
    if isinstance(value, bool | str):
        return value, ""
    if isinstance(value, Integral):
        return (int(value), "") if -(2**63) <= int(value) < 2**63 else (None, "the score is beyond 64 bits")
    if isinstance(value, Real | Decimal):
        return (float(value), "") if math.isfinite(value) else (None, f"the score is {float(value)}")
    if callable(item := getattr(value, "item", None)):
        hidden = getattr(getattr(value, "mask", None), "all", bool)()  # of a masked value, item() is any number
        return checked_score(None if hidden else item())
    raise TypeError(f"the scorer returned {type(value).__name__}; a score is a bool, a number, a string or a mapping")


def slots(prompt: str) -> frozenset[str]:
    return frozenset(_SLOT.findall(prompt))


def fill(prompt: str, values: Mapping[str, Any]) -> str:
    return _SLOT.sub(lambda slot: text_of(values[slot[1]]), prompt)


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=dict)


def same_json(one: Any, other: Any) -> bool:
    """Compare as JSON: members in any order, numbers by value; a bool is not a number."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same_json(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same_json, one, other))
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


def _number_or_text(value: Any) -> Any:
    return value if isinstance(value, int | float) else text_of(value)


def _parsed(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def composed(text: str, ignore_case: bool = False) -> str:
    """Return a text in Unicode's composed form (NFC), in which letters with accents have one spelling."""
    return text if text.isascii() and not ignore_case else _composed(text.casefold() if ignore_case else text)


_composed = partial(unicodedata.normalize, "NFC")


def _texts(output: Any, expected: Any, ignore_case: bool) -> tuple[str, str]:
    return composed(text_of(output), ignore_case), composed(text_of(expected), ignore_case)


_read_pattern = lru_cache(maxsize=256)(patterns.parse)


def _budget(steps: int) -> patterns.Spend:
    left = steps

    def spend(work: int) -> None:
        nonlocal left
        left -= work
        if left < 0:
            raise Unscored(f"the search for the pattern took more than {steps} steps")

    return spend


MAX_FORMULA = 1000

_OPERATORS: Mapping[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: math.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    function.__name__: function for function in (min, max, abs, math.floor, math.ceil, math.exp, math.sqrt, math.log)
}
_MOST_ARGUMENTS: Mapping[str, float] = {"min": math.inf, "max": math.inf, "log": 2}


class FormulaError(ValueError):
    """A text is not a formula."""


@attrs.frozen
class Formula:
    text: str
    names: frozenset[str]

    def value(self, numbers: Mapping[str, float]) -> float | None:
        """Return its value; None if that is not a finite number, as after a division by 0."""
        try:
            found = float(_value(_body(self.text), numbers))
        except (ArithmeticError, ValueError):
            return None
        return found if math.isfinite(found) else None


@lru_cache(maxsize=256)
def read_formula(text: str) -> Formula:
    if len(text) > MAX_FORMULA:
        raise FormulaError(f"has more than {MAX_FORMULA} characters")
    try:
        return Formula(text, frozenset(_names(_body(text))))
    except FormulaError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise FormulaError("is not a formula, such as 0.8 * right + 0.2 * short") from None


@lru_cache(maxsize=256)
def _body(text: str) -> ast.expr:
    return ast.parse(text.strip().replace("^", "**"), mode="eval").body


def _names(node: ast.expr) -> set[str]:
    match node:
        case ast.Constant(value=value) if type(value) in (int, float):
            return set()
        case ast.Name(id=name):
            return {name}
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return _names(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _names(left) | _names(right)
        case ast.Call(func=ast.Name(id=name), args=[_, *_] as args, keywords=[]) if name in _FUNCTIONS:
            if len(args) > _MOST_ARGUMENTS.get(name, 1):
                raise FormulaError(f"gives {len(args)} arguments to {name}")
            return set().union(*map(_names, args))
    raise FormulaError(f"is not arithmetic at {ast.unparse(node)[:40]!r}")


def _value(node: ast.expr, numbers: Mapping[str, float]) -> Any:
    match node:
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.Name(id=name):
            return numbers[name]
        case ast.UnaryOp(op=op, operand=operand):
            return _OPERATORS[type(op)](_value(operand, numbers))
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, numbers), _value(right, numbers))
        case ast.Call(func=ast.Name(id=name), args=args):
            values = [_value(argument, numbers) for argument in args]
            return _FUNCTIONS[name](values) if name in ("min", "max") else _FUNCTIONS[name](*values)
    raise AssertionError(node)
