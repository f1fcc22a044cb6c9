"""The tabular language model: one softmax over tokens, small enough for pure Python, that really learns.

The logit of a token is a seeded prior plus the sum of value x weight over the features that are active at its position:
the last one, two, three and five tokens, the stems of the prompt's informative words, and each of these together with
the last token and the number of the sentence. No table is keyed by whole prompts, so what is learnt from one prompt
carries over to others that share words with it.

A weight belongs to a (feature, token) pair, and exists only for pairs that training has met
(`engines.tabular.learning`). So at each position only a few dozen logits differ from those that the prompt alone gives,
and the softmax is normalised exactly at their cost instead of the vocabulary's.
"""

import math
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice, repeat
from operator import ge, or_
from random import Random
from types import MappingProxyType
from typing import Any, NamedTuple
from zlib import crc32

import attrs

from modelyard.domain.completion import Message, Role
from modelyard.engines.tabular.tokenizer import END_OF_TURN, OPENING_IDS, TOKENS, VOCABULARY_SIZE, WORD_IDS, encode

TOKEN_BITS = 9
WEIGHT_LIMIT = 100.0
"""The largest weight (nats): a healthy one stays far below, and the sum at a position can be exponentiated."""

Features = tuple[tuple[int, float], ...]
"""(feature id, value) pairs."""

Context = tuple[int, int, list[int]]
"""A token of an answer, the one before it, and the ids of the features active there besides the constant ones.
Their values are the prompt's `values`."""

Row = Mapping[int, float]
"""The weights of one feature (nats), by token."""


NO_WEIGHTS: Row = {}
"""The row of a feature that did not occur in training."""

# ---- features --------------------------------------------------------------------------------------------------

_FEATURES = 1 << 48
_BIAS, _PROMPT_WORD, _KEY_WORD, _LAST_ONE, _LAST_TWO, _LAST_THREE, _LAST_FIVE = (kind << 45 for kind in range(7))
REACH = 5
FULL_STOP = ord(".")
_WORD = re.compile(r"\w+(?:-\w+)*")
_STEM = 4
_TELLING_LENGTH = 5
_TELLING_WORDS = 6
_EARLIER_MESSAGE = 0.1
_COMMON_WORD = 0.2
_COMMON = """
a about again all am an and any are at be been but by can could did do does for from get give had has have how i if
in into is it its may me my need no not of on one or our out please should so some something tell than that the
their them then there they this to up us use want was we were what when where which who why will with would you your
"""
_COMMON_WORDS = frozenset(_COMMON.split())
# Squared lengths: what is active all along an answer must move less at each of its positions. The values of a position
# add up to less than 7, so that with weights within the limit no logit is too large for `exp`.
_BIAS_VALUE, _PROMPT_NORM, _KEY_NORM = 0.5, 0.3, 3.3
_ONE_VALUE, _TWO_VALUE, _THREE_VALUE, _FIVE_VALUE = 0.4, 0.6, 0.8, 0.6


@attrs.frozen
class PromptFeatures:
    """A prompt as features: `constant` ones are active all along an answer, `keys` combine with its last token and
    sentence.
    """

    constant: Features
    keys: Features

    @property
    def key_ids(self) -> list[int]:
        """Return the ids of the keys."""
        return [key for key, _ in self.keys]

    @property
    def values(self) -> tuple[float, ...]:
        """The values of the features of a position, in the order in which `contexts` lists them."""
        return (*[value for _, value in self.keys], _ONE_VALUE, _TWO_VALUE, _THREE_VALUE, _FIVE_VALUE)


def prompt_features(messages: Sequence[Message]) -> PromptFeatures:
    """Return the features of a conversation: the stems of its most informative words, hashed with their roles.

    The last user message and what follows it count in full, earlier messages little; long words more than short ones,
    and the commonest words of English little. A stem is the first letters of a word, so that its inflected forms
    coincide.
    """
    words = _word_values(messages)
    telling = dict(sorted(words.items(), key=lambda item: (-item[1], item[0]))[:_TELLING_WORDS])
    constant = ((_PROMPT_WORD | _hash(word), value) for word, value in _scaled(telling, _PROMPT_NORM))
    keys = ((_KEY_WORD | _hash(word) << 2 * TOKEN_BITS, value) for word, value in _scaled(telling, _KEY_NORM))
    return PromptFeatures(((_BIAS, _BIAS_VALUE), *constant), tuple(keys))


def _hash(word: str) -> int:
    """Return one of 2^27 buckets, the same in every process."""
    return crc32(word.encode(errors="replace")) >> 5


def _word_values(messages: Sequence[Message]) -> dict[str, float]:
    users = [place for place, message in enumerate(messages) if message.role is Role.USER]
    last = users[-1] if users else len(messages) - 1
    values: dict[str, float] = {}
    for place, message in enumerate(messages):
        share = 1.0 if place >= last else _EARLIER_MESSAGE
        for word in _WORD.findall(message.text.casefold()):
            stem = f"{message.role}:{word[:_STEM]}"
            values[stem] = max(values.get(stem, 0.0), share * _informativeness(word))
    return values


def _informativeness(word: str) -> float:
    """Estimate how informative a word is from its length, without looking at any data."""
    return min(len(word), _TELLING_LENGTH) / _TELLING_LENGTH * (_COMMON_WORD if word in _COMMON_WORDS else 1.0)


def _scaled(values: Mapping[str, float], squared_length: float) -> list[tuple[str, float]]:
    """Scale the values to this sum of squares."""
    scale = math.sqrt(squared_length / (math.fsum(value * value for value in values.values()) or 1.0))
    return [(word, value * scale) for word, value in values.items()]


def prompt_ids(messages: Iterable[Message]) -> list[int]:
    """Return the conversation as tokens, up to where the assistant's answer begins."""
    turns = (encode(f"{message.role}: {message.text}") for message in messages)
    return [*(token for turn in turns for token in (*turn, END_OF_TURN)), *encode("assistant: ")]


# ---- weights ---------------------------------------------------------------------------------------------------


@attrs.frozen
class Adapter:
    """What training has changed: rows of weights by feature id. Never modified once made; step 0 has none."""

    rows: Mapping[int, Row] = MappingProxyType({})

    def parameters(self) -> tuple["array[int]", "array[float]"]:
        """Return two columns for a file: ascending parameter ids (feature id x 512 + token; int64) and weights
        (float64).
        """
        return parameter_columns(self.rows)

    @classmethod
    def from_parameters(cls, ids: Sequence[int], weights: Sequence[float]) -> "Adapter":
        """Build the adapter of these columns. Raises ValueError if `parameters` could not have returned them."""
        if not all(map(WEIGHT_LIMIT.__ge__, map(abs, weights))):
            raise ValueError(f"an adapter's weights must be within +-{WEIGHT_LIMIT:g}")
        return cls(parameter_rows(ids, weights))


def parameter_columns(rows: Mapping[int, Row]) -> tuple["array[int]", "array[float]"]:
    """Return numbers by feature and token as two columns: ascending parameter ids, and the numbers."""
    ids, numbers = array("q"), array("d")
    for feature in sorted(rows, key=float):  # exact for ids of features, and sorted faster than integers
        row, first = rows[feature], feature << TOKEN_BITS
        for token in sorted(row):
            ids.append(first | token)
            numbers.append(row[token])
    return ids, numbers


def parameter_rows(ids: Sequence[int], numbers: Sequence[float]) -> dict[int, dict[int, float]]:
    """Return by feature and token what these columns have. Raises ValueError if they cannot be such columns."""
    if len(ids) != len(numbers) or any(map(ge, ids, islice(ids, 1, None))):
        raise ValueError("an adapter needs one weight for each parameter id, and ids in ascending order")
    if ids and not 0 <= ids[0] <= ids[-1] < _FEATURES << TOKEN_BITS:
        raise ValueError("an adapter's ids start at 0 and belong to features of this model")
    rows: dict[int, dict[int, float]] = {}
    found = -1
    for parameter, number in zip(ids, numbers, strict=True):
        feature = parameter >> TOKEN_BITS
        if feature != found:
            row = rows[feature] = {}
            found = feature
        row[TOKENS[parameter % VOCABULARY_SIZE]] = number
    return rows


# ---- the untrained model -----------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def prior(seed: int) -> tuple[float, ...]:
    """Return base logits that fall from common words over rare ones and parts of words to stray bytes.

    Each seed has its own preferences.
    """
    taste = Random(seed)  # noqa: S311 - a model, not a secret
    return tuple(_commonness(token) + 0.3 * taste.gauss(0, 1) for token in range(VOCABULARY_SIZE))


def _commonness(token: int) -> float:
    if token in WORD_IDS:
        return -0.6 * math.log(token - WORD_IDS.start + 6)
    if token == END_OF_TURN or chr(token) in " ,.":
        return -2.5
    if token > END_OF_TURN:
        return -4.0
    return -5.0 if chr(token).isascii() and chr(token).isprintable() else -8.0


@lru_cache(maxsize=4096)
def habit(seed: int, last: int) -> Row:
    """Return what the untrained model prefers after a token: openings first, a few words after words, an end after a
    stop.
    """
    taste = Random(f"{seed}:{last}")  # noqa: S311 - a model, not a secret
    if last in (END_OF_TURN, ord(".")):
        preferred = {token: taste.uniform(2, 4) for token in taste.sample(OPENING_IDS, 4)}
        preferred |= {END_OF_TURN: 4.5} if last == ord(".") else {}
    else:
        preferred = {token: taste.uniform(1, 3.5) for token in taste.sample(WORD_IDS, 5)}
        preferred |= {ord("."): 5.0} if taste.random() < 0.12 else {}
        preferred[last] = -3.0
    return preferred


# ---- the model -------------------------------------------------------------------------------------------------


@attrs.frozen
class TabularModel:
    """A base model, identified by its seed, with an adapter. Answers depend on nothing else.

    >>> model = TabularModel(seed=7)
    >>> len(model.scorer(prompt_features([])).next_logprobs([]))
    512
    """

    seed: int
    adapter: Adapter = Adapter()

    def scorer(self, features: PromptFeatures) -> "PromptScorer":
        """Return the scorer of answers to one prompt."""
        return PromptScorer(self.seed, self.adapter.rows, features)

    def score(self, features: PromptFeatures, ids: Sequence[int]) -> list[float]:
        """Return the log-probability (nats, temperature 1) of each token of an answer."""
        return self.scorer(features).score(ids)


class Odds(NamedTuple):
    """The distribution of the next token: by token, logits and their exponentials; and the log of the sum of these."""

    logits: list[float]
    weights: list[float]
    log_total: float

    def logprob(self, token: int) -> float:
        """Return the log-probability (nats) of a token."""
        return self.logits[token] - self.log_total

    @property
    def logprobs(self) -> list[float]:
        """Return the log-probability (nats) of every token."""
        log_total = self.log_total
        return [logit - log_total for logit in self.logits]


class PromptScorer:
    """The model at one prompt. The prompt's part is summed once, here; each position then adds its own part.

    `logits` are the prompt's own by token, the largest 0, and `exps` their exponentials.
    """

    def __init__(self, seed: int, rows: Mapping[int, Row], features: PromptFeatures) -> None:
        self._seed, self._rows, self._features = seed, rows, features
        self._key_ids, self._values = features.key_ids, features.values
        logits = list(prior(seed))
        for feature, value in features.constant:
            for token, weight in rows.get(feature, NO_WEIGHTS).items():
                logits[token] += value * weight
        top = max(logits)
        self.logits: list[float] = [logit - top for logit in logits]
        self.exps: list[float] = list(map(math.exp, self.logits))

    def odds(self, context: Sequence[int]) -> Odds:
        """Return the distribution after `context`, the beginning of an answer."""
        recent = (*BEFORE, *context[-REACH:])[-REACH:]
        return self._odds(recent[-1], _active(self._key_ids, recent, context.count(FULL_STOP)))

    def next_logprobs(self, context: Sequence[int]) -> list[float]:
        """Return the log-probability of every token after `context`, the beginning of an answer."""
        return self.odds(context).logprobs

    def score(self, ids: Sequence[int]) -> list[float]:
        """Return the log-probability (nats, temperature 1) of each token of an answer."""
        return self.score_in(contexts(self._features, ids))

    def score_in(self, targets: Iterable[Context]) -> list[float]:
        """Return the log-probability of each token in its context."""
        return [self._odds(last, features).logprob(target) for target, last, features in targets]

    def _odds(self, last: int, features: Iterable[int]) -> Odds:
        logits, preferred = self.logits.copy(), habit(self._seed, last)
        rows = list(map(self._rows.get, features, repeat(NO_WEIGHTS)))
        for token, weight in preferred.items():
            logits[token] += weight
        for value, row in zip(self._values, rows, strict=True):
            for token, weight in row.items():
                logits[token] += value * weight
        weights = self.exps.copy()
        for token in set().union(preferred, *rows):
            weights[token] = math.exp(logits[token])
        return Odds(logits, weights, math.log(sum(weights)))


BEFORE = (END_OF_TURN,) * REACH


def contexts(features: PromptFeatures, ids: Sequence[int]) -> Iterator[Context]:
    """Yield every token of an answer with its context; an answer begins as if after an end of turn."""
    keys = features.key_ids
    padded = (*BEFORE, *ids)
    sentence = 0
    for place, target in enumerate(ids):
        recent = padded[place : place + REACH]
        yield target, recent[-1], _active(keys, recent, sentence)
        sentence += target == FULL_STOP


def _active(keys: Sequence[int], recent: tuple[int, ...], sentence: int) -> list[int]:
    """Return the features of a position besides the constant ones: after these tokens, in this sentence."""
    joined = sentence % VOCABULARY_SIZE << TOKEN_BITS | recent[-1]
    return [*map(or_, keys, repeat(joined)), *_ngrams(recent)]


def ngrams(recent: Any) -> tuple[Any, Any, Any, Any]:
    """Return the features of the last one, two, three and five tokens; these are integers, or arrays of them."""
    fifth, fourth, third, second, last = recent
    two = last << TOKEN_BITS | second
    three = two << TOKEN_BITS | third
    five = (three << TOKEN_BITS | fourth) << TOKEN_BITS | fifth
    return _LAST_ONE | last, _LAST_TWO | two, _LAST_THREE | three, _LAST_FIVE | five


_ngrams = lru_cache(maxsize=1 << 14)(ngrams)
