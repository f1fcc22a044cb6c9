"""Declarative scorers that measure how near a string comes to the expected one, from 0 to 1. The row's field may hold
one text or a list of texts: then the nearest counts. Texts of more than `MAX_OUTPUT` characters are not scored.

All compare texts in Unicode's composed form. Texts without words are as near as they are equal."""

import re
import string
import unicodedata
from abc import abstractmethod
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import attrs

from modelyard.domain.evaluation.scorers import MAX_OUTPUT, OwnRule, Unscored, composed, text_of

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
