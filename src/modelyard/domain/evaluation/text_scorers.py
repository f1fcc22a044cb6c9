"""Declarative scorers that measure how near a string comes to the expected one, from 0 to 1. The row's field may hold
one text or a list of texts: then the nearest counts. Texts of more than `MAX_OUTPUT` characters are not scored."""

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import attrs

from modelyard.domain.evaluation.scorers import MAX_OUTPUT, OwnRule, Unscored, text_of

_WORD = re.compile(r"\w+")
_ARTICLE = frozenset({"a", "an", "the"})


@attrs.frozen
class OneOf(OwnRule):
    """Whether the output is one of the texts in the row's field `expected`, ignoring white space around both."""

    type = "one_of"
    expected: str = "expected"
    ignore_case: bool = False

    def score(self, output: Any, row: Mapping[str, Any]) -> bool:
        given, *wanted = (text.strip() for text in (text_of(output), *_texts(row[self.expected], self.expected)))
        return _folded(given, self.ignore_case) in {_folded(text, self.ignore_case) for text in wanted}


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
        one, other = _folded(given, self.ignore_case), _folded(wanted, self.ignore_case)
        return _overlap(common_subsequence(one, other), len(one), len(other))


@attrs.frozen
class TokenF1(Nearness):
    """The F1 of the words of both texts in any order, without case, punctuation and English articles (as in SQuAD)."""

    type = "token_f1"

    def nearness(self, given: str, wanted: str) -> float:
        """Return the harmonic mean of precision and recall of the tokens."""
        one, other = (Counter(word for word in _words(text) if word not in _ARTICLE) for text in (given, wanted))
        return _overlap((one & other).total(), one.total(), other.total())


@attrs.frozen
class RougeL(Nearness):
    """ROUGE-L: the F1 of the longest sequence of words that both texts have in common, without case."""

    type = "rouge_l"

    def nearness(self, given: str, wanted: str) -> float:
        one, other = _words(given), _words(wanted)
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


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _folded(text: str, ignore_case: bool) -> str:
    return text.casefold() if ignore_case else text


def _texts(expected: Any, field: str) -> list[str]:
    found = [text_of(one) for one in expected] if isinstance(expected, list | tuple) else [text_of(expected)]
    if not found:
        raise Unscored(f"the row's {field!r} is empty")
    return found
