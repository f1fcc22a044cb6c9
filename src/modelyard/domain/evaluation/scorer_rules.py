"""The types of declarative scorers, those that read a text or a structure, and how one is read from JSON data."""

import json
import math
import re
import string
import unicodedata
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import attrs

from modelyard.domain.evaluation.scorers import (
    MAX_OUTPUT,
    Contains,
    DeclarativeScorer,
    ExactMatch,
    FormulaError,
    JsonEqual,
    LlmJudge,
    Numeric,
    OwnRule,
    RegularExpression,
    Unscored,
    composed,
    read_formula,
    same_json,
    text_of,
)
from modelyard.domain.record import frozen_mapping
from modelyard.errors import InvalidInput, Problem, located_at, nearest

_STEP = re.compile(r"""\.?([A-Za-z_][\w-]*)|\[(-?[0-9]{1,9})\]|\[(?:'([^']*)'|"([^"]*)")\]""")
_NOTHING = object()


@attrs.frozen
class JsonPath(OwnRule):
    """Whether the output is JSON that has the row's field `expected` at `path`, such as `$.items[0].name`.

    A path names members (`.name` or `['any name']`) and places of a list (`[0]`; `[-1]` is the last). An output that is
    not JSON, or has nothing there, scores False. Raises `InvalidInput` for another path.
    """

    type = "json_path"
    path: str
    expected: str = "expected"

    def __attrs_post_init__(self) -> None:
        _steps(self.path)

    def score(self, output: Any, row: Mapping[str, Any]) -> bool:
        wanted = row[self.expected]
        try:
            value = json.loads(output) if isinstance(output, str) else output
        except (ValueError, RecursionError):
            return False
        for step in _steps(self.path):
            value = _at(value, step)
        return value is not _NOTHING and same_json(value, wanted)


def _steps(path: str) -> list[str | int]:
    steps: list[str | int] = []
    at = 1 if path.startswith("$") else 0
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None:
            raise InvalidInput.at("path", msg=f"cannot be read from {path[at:][:40]!r} on; write it as $.items[0].name")
        name, place, quoted, other = found.groups()
        steps.append(int(place) if place is not None else next(one for one in (name, quoted, other) if one is not None))
        at = found.end()
    return steps


def _at(value: Any, step: str | int) -> Any:
    if isinstance(step, str):
        return value.get(step, _NOTHING) if isinstance(value, Mapping) else _NOTHING
    there = isinstance(value, list | tuple) and -len(value) <= step < len(value)
    return value[step] if there else _NOTHING


@attrs.frozen
class ToolCalls(OwnRule):
    """Whether the output calls the tools in the row's field `expected`, in any order, and no others.

    A call is an object with `name` and `arguments`, and the field holds one or a list of them; without `arguments` only
    the name counts, as it does for all calls with `names_only`. An empty list expects that no tool is called.
    """

    type = "tool_calls"
    expected: str = "expected"
    names_only: bool = False

    def score(self, output: Any, row: Mapping[str, Any]) -> bool:
        wanted = row[self.expected]
        given = _calls(output.get("tool_calls")) if isinstance(output, Mapping) else []
        for call in _calls(wanted if isinstance(wanted, list | tuple) else [wanted]):
            found = next((one for one in given if self._is(one, call)), None)
            if found is None:
                return False
            given.remove(found)
        return not given

    def _is(self, given: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
        if given["name"] != wanted["name"]:
            return False
        return self.names_only or wanted["arguments"] is None or same_json(given["arguments"], wanted["arguments"])


def _calls(value: Any) -> list[Mapping[str, Any]]:
    """Return the calls; names and arguments may also lie below `function`, or be written as text."""
    found: list[Mapping[str, Any]] = []
    for one in value if isinstance(value, list | tuple) else ():
        call = one.get("function", one) if isinstance(one, Mapping) else {"name": one}
        found.append({"name": call.get("name"), "arguments": _arguments(call.get("arguments"))})
    return found


def _arguments(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


_WORD = re.compile(r"\w+")
_JOINERS = "\u200c\u200d"
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"(?<![\u0300-\u036f])\b(?:a|an|the)\b(?![\u0300-\u036f])")


@attrs.frozen
class OneOf(OwnRule):
    """Whether the output is one of the texts in the row's field `expected`, ignoring white space around both."""

    type = "one_of"
    expected: str = "expected"
    ignore_case: bool = False

    def score(self, output: Any, row: Mapping[str, Any]) -> bool:
        given, *wanted = (text.strip() for text in (text_of(output), *_texts(row[self.expected], self.expected)))
        return composed(given, self.ignore_case) in {composed(text, self.ignore_case) for text in wanted}


@attrs.frozen
class Nearness(OwnRule):
    expected: str = "expected"

    def score(self, output: Any, row: Mapping[str, Any]) -> float:
        given, wanted = text_of(output), _texts(row[self.expected], self.expected)
        if max(map(len, (given, *wanted))) > MAX_OUTPUT:
            raise Unscored(f"the output or what is expected has more than {MAX_OUTPUT} characters")
        return max(self.nearness(given, text) for text in wanted)

    @abstractmethod
    def nearness(self, given: str, wanted: str) -> float: ...


@attrs.frozen
class Fuzzy(Nearness):
    """The share of the characters of both texts that they have in common, in their order (indel similarity)."""

    type = "fuzzy"
    ignore_case: bool = False

    def nearness(self, given: str, wanted: str) -> float:
        """Return twice the longest common subsequence over the length of both."""
        one, other = composed(given, self.ignore_case), composed(wanted, self.ignore_case)
        return _overlap(common_subsequence(one, other), len(one), len(other))


@attrs.frozen
class TokenF1(Nearness):
    """The F1 of the words of both texts in any order, as SQuAD's evaluation normalises them: without case, English
    articles and ASCII punctuation, which splits no word ("U.S." is "US"); what white space separates is a word."""

    type = "token_f1"

    def nearness(self, given: str, wanted: str) -> float:
        """Return the harmonic mean of precision and recall of the tokens."""
        one, other = Counter(_squad_words(given)), Counter(_squad_words(wanted))
        if not one and not other:
            return _are_equal(given, wanted)
        return _overlap((one & other).total(), one.total(), other.total())


@attrs.frozen
class RougeL(Nearness):
    """ROUGE-L: the F1 of the longest sequence of words that both texts have in common, without case."""

    type = "rouge_l"

    def nearness(self, given: str, wanted: str) -> float:
        one, other = _words(given), _words(wanted)
        if not one and not other:
            return _are_equal(given, wanted)
        return _overlap(common_subsequence(one, other), len(one), len(other))


def common_subsequence(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """Return the length of the longest common subsequence: bit by bit in one integer, after Hyyro.

    >>> common_subsequence("kitten", "sitting")
    4
    """
    places: dict[Hashable, int] = {}
    for at, item in enumerate(one):
        places[item] = places.get(item, 0) | 1 << at
    full = unmatched = (1 << len(one)) - 1
    for item in other:
        matched = unmatched & places.get(item, 0)
        unmatched = ((unmatched + matched) | (unmatched - matched)) & full
    return len(one) - unmatched.bit_count()


def _overlap(common: int, one: int, other: int) -> float:
    return 2 * common / (one + other) if one + other else 1.0


def _are_equal(given: str, wanted: str) -> float:
    """Compare texts without words, which are as near as they are equal."""
    return float(composed(given.strip(), ignore_case=True) == composed(wanted.strip(), ignore_case=True))


def _squad_words(text: str) -> list[str]:
    return _ARTICLE.sub(" ", composed(text).lower().translate(_PUNCTUATION)).split()


def _words(text: str) -> list[str]:
    """Return the words of a text: letters, digits and low lines, with the marks that combine with them."""
    text = composed(text, ignore_case=True)
    if text.isascii():
        return _WORD.findall(text)
    spaced = "".join(one if _is_of_word(one) else " " for one in text)
    return [word for word in spaced.split() if _WORD.search(word)]


def _is_of_word(letter: str) -> bool:
    return letter.isalnum() or letter == "_" or letter in _JOINERS or unicodedata.category(letter).startswith("M")


def _texts(expected: Any, field: str) -> list[str]:
    found = [text_of(one) for one in expected] if isinstance(expected, list | tuple) else [text_of(expected)]
    if not found:
        raise Unscored(f"the row's {field!r} is empty")
    return found


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

    @property
    def asked_for(self) -> frozenset[str]:
        return frozenset().union(*(part.asked_for for part in self.parts.values()))

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
        named = f': write {{"type": {plain!r}}}' if isinstance(plain, str) else ""
        raise InvalidInput.at("scorers", name, msg=f"must be a declarative scorer, as data{named}")
    below = plain.get("scorers") if _is_combined(plain) else None
    if isinstance(below, Mapping) and any(map(_is_combined, below.values())):
        raise InvalidInput.at("scorers", name, msg="combines what is combined itself; combine it in one formula")
    with located_at("scorers", name):
        return rule_of(plain)


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
        meant = nearest(kind, RULES) if isinstance(kind, str) else ""
        raise InvalidInput.at("type", msg=f"must be one of {', '.join(sorted(RULES))}{meant}")
    given = {name: value for name, value in plain.items() if name not in ("type", "name") and value is not None}
    fields = {field.name: field for field in attrs.fields(RULES[kind])}
    problems = [
        Problem((name,), f"is not a field of {kind}{nearest(name, fields)}")
        for name in sorted(given.keys() - fields.keys())
    ]
    problems += [Problem((name,), "is required", "missing") for name in sorted(_required(fields) - given.keys())]
    problems += [problem for name in fields if name in given for problem in _misfits(fields[name], given[name])]
    if problems:
        raise InvalidInput(problems)
    return RULES[kind](**given)


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
