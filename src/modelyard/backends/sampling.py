"""Sampling tokens from a distribution: pure functions of log-probabilities, parameters, a seed and a position. The
order is: logit bias and penalties; temperature; top-k, then top-p, then min-p, each on what the previous one left; one
draw. An answer does not depend on what else is in its batch."""

import hashlib
import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate, repeat
from operator import sub, truediv

from modelyard.domain.completion import Sampling
from modelyard.errors import InvalidInput


def check_token_ids(sampling: Sampling, vocabulary: int) -> None:
    for name, tokens in (("logit_bias", sampling.logit_bias), ("stop_token_ids", sampling.stop_token_ids)):
        unknown = [token for token in tokens if not 0 <= token < vocabulary]
        if unknown:
            raise InvalidInput.at(name, msg=f"{unknown[0]} is not a token id of this model, which has {vocabulary}")


def next_token(logprobs: Sequence[float], sampling: Sampling, prompt: Iterable[int], answer: Sequence[int]) -> int:
    """Return the token that follows `answer`: the likeliest at temperature 0, else sampled by seed and position.
    `logprobs` are the model's own, by token id; without a repetition penalty they may all be off by the same constant.
    A seed of None counts as 0."""
    scores = penalised(logprobs, sampling, prompt, answer)
    if sampling.temperature == 0:
        return scores.index(max(scores))
    return drawn(softened(scores, sampling.temperature), sampling, len(answer))


def is_plain(sampling: Sampling) -> bool:
    """Return whether tokens are weighted as the model weights them: temperature 1, no bias, no penalty."""
    penalties = sampling.frequency_penalty or sampling.presence_penalty or sampling.repetition_penalty != 1
    return sampling.temperature == 1 and not penalties and not sampling.logit_bias


def drawn(weights: Sequence[float], sampling: Sampling, position: int) -> int:
    return draw(weights, kept(weights, sampling), uniform(sampling.seed or 0, position))


def penalised(
    logprobs: Sequence[float], sampling: Sampling, prompt: Iterable[int], answer: Sequence[int]
) -> Sequence[float]:
    """Return the scores after logit bias and penalties. The repetition penalty multiplies the log-probability of every
    token of prompt and answer. The frequency penalty is subtracted once for each occurrence in the answer, the presence
    penalty once."""
    scores = list(logprobs)
    if sampling.repetition_penalty != 1:
        for token in {*prompt, *answer}:
            scores[token] *= sampling.repetition_penalty
    if sampling.frequency_penalty or sampling.presence_penalty:
        for token, times in Counter(answer).items():
            scores[token] -= sampling.frequency_penalty * times + sampling.presence_penalty
    for token, bias in sampling.logit_bias.items():
        scores[token] += bias
    return scores


def softened(scores: Sequence[float], temperature: float) -> list[float]:
    """Return weights in proportion to the softmax of the scores divided by a positive temperature; the largest is 1."""
    top = max(scores)
    gaps = map(sub, scores, repeat(top))
    return list(map(math.exp, gaps if temperature == 1 else map(truediv, gaps, repeat(temperature))))


def kept(weights: Sequence[float], sampling: Sampling) -> Sequence[int]:
    """Return the ids that may be drawn, ascending; among equally likely tokens lower ids come first."""
    top_k = sampling.top_k if sampling.top_k and sampling.top_k > 0 else len(weights)
    if top_k >= len(weights) and sampling.top_p >= 1 and not sampling.min_p:
        return range(len(weights))
    best = most_likely(weights, top_k)
    best = best[: _nucleus([weights[token] for token in best], sampling.top_p)]
    floor = sampling.min_p * weights[best[0]]
    return sorted(token for token in best if weights[token] >= floor)


def _nucleus(descending: Sequence[float], top_p: float) -> int:
    if top_p >= 1:
        return len(descending)
    sums = list(accumulate(descending))
    return 1 + bisect_left(sums, top_p * sums[-1])


def draw(weights: Sequence[float], tokens: Sequence[int], chance: float) -> int:
    """Return the token at which the running sum over `tokens` passes `chance` (0 <= chance < 1) of the total."""
    sums = list(accumulate(weights if len(tokens) == len(weights) else map(weights.__getitem__, tokens)))
    last_possible = bisect_left(sums, sums[-1])
    return tokens[min(bisect_right(sums, chance * sums[-1]), last_possible)]


def most_likely(values: Sequence[float], count: int) -> list[int]:
    """Return the ids of the `count` largest values in descending order, lower ids first among equals."""
    return sorted(range(len(values)), key=lambda token: -values[token])[:count]


def uniform(seed: int, position: int) -> float:
    drawn = hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(drawn) >> 11) / 2**53
