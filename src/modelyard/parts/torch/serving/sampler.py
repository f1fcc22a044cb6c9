"""Sampling the next token of many sequences at once, by the rules of `modelyard.backends.sampling`.

A row's token depends on its own logits, parameters, seed and position alone: rows with filters are sampled separately,
so that they change nothing for the others, and each draw uses one number that depends on seed and position.
"""

from collections.abc import Sequence as Rows

import torch
from torch import Tensor

from modelyard.backends.sampling import uniform
from modelyard.parts.torch.serving.sequence import SampledToken, Sequence

NEVER = -1e30
"""The score of a forbidden token."""

COLDEST = 1e-30
"""Lower temperatures make no difference, and 32 bits cannot distinguish them from 0."""


class Sampler:
    """Samples for the same sequences, step after step: what does not change between steps is prepared once."""

    def __init__(self, sequences: Rows[Sequence], device: torch.device) -> None:
        self._sequences, self._device = sequences, device
        samplings = [sequence.sampling for sequence in sequences]
        self._greedy = torch.tensor([sampling.temperature == 0 for sampling in samplings], device=device)
        temperatures = [max(sampling.temperature, COLDEST) if sampling.temperature else 1.0 for sampling in samplings]
        self._temperatures = torch.tensor(temperatures, dtype=torch.float32, device=device)[:, None]
        self._all_greedy = all(sampling.temperature == 0 for sampling in samplings)
        self._adjusting = [row for row, sequence in enumerate(sequences) if _adjusts(sequence)]
        self._filtering = [row for row, sequence in enumerate(sequences) if _filters(sequence)]
        self._top = max((sequence.top_logprobs for sequence in sequences), default=0)

    def draw(self, logits: Tensor) -> list[SampledToken]:
        """Sample the next token of each sequence, from logits (sequences x vocabulary), which may be changed in
        place.
        """
        logprobs = logits.log_softmax(-1)
        scores = self._adjusted(logprobs) if self._adjusting else logprobs
        tokens = scores.argmax(-1)
        if not self._all_greedy:
            tokens = torch.where(self._greedy, tokens, self._drawn(scores))
        return self._samples(tokens, logprobs)

    def _adjusted(self, logprobs: Tensor) -> Tensor:
        scores = logprobs.clone()
        for row in self._adjusting:
            sequence = self._sequences[row]
            try:
                _adjust(scores[row], sequence)
            except Exception as fault:  # noqa: BLE001 - an error of one grammar does not affect the other rows
                sequence.failure = fault
        return scores

    def _drawn(self, scores: Tensor) -> Tensor:
        weights = (scores / self._temperatures).softmax(-1)
        chances = [uniform(one.sampling.seed or 0, len(one.answer)) for one in self._sequences]
        chance = torch.tensor(chances, dtype=torch.float64, device=self._device)[:, None]
        tokens = _at(weights, chance)
        for row in self._filtering:
            tokens[row] = _filtered(weights[row], chance[row], self._sequences[row])
        return tokens

    def _samples(self, tokens: Tensor, logprobs: Tensor) -> list[SampledToken]:
        own = logprobs.gather(1, tokens[:, None])[:, 0].tolist()
        if not self._top:
            return [SampledToken(token, min(logprob, 0.0)) for token, logprob in zip(tokens.tolist(), own, strict=True)]
        best = logprobs.topk(self._top)
        values, ids = best.values.tolist(), best.indices.tolist()
        return [
            SampledToken(token, min(own[row], 0.0), _first(ids[row], values[row], self._sequences[row].top_logprobs))
            for row, token in enumerate(tokens.tolist())
        ]


def _first(ids: Rows[int], logprobs: Rows[float], count: int) -> list[tuple[int, float]]:
    return [(token, min(logprob, 0.0)) for token, logprob in zip(ids[:count], logprobs, strict=False)]


def _at(weights: Tensor, chance: Tensor) -> Tensor:
    """Return, by row, the token at which the running sum passes `chance` of the total; sums are long and need 64
    bits.
    """
    sums = weights.double().cumsum(-1)
    whole = sums[:, -1:]
    last_possible = (sums < whole).sum(-1)
    return torch.minimum((sums <= chance * whole).sum(-1), last_possible)


def _filtered(weights: Tensor, chance: Tensor, sequence: Sequence) -> Tensor:
    """Sample for a row with filters: top-k, then top-p, then min-p; then draw among the rest in order of their ids."""
    sampling = sequence.sampling
    ordered, ids = weights.sort(descending=True, stable=True)
    if sampling.top_k is not None and sampling.top_k > 0:
        ordered, ids = ordered[: sampling.top_k], ids[: sampling.top_k]
    if sampling.top_p < 1:
        sums = ordered.double().cumsum(-1)
        count = 1 + int((sums < sampling.top_p * sums[-1]).sum().clamp(max=len(sums) - 1))
        ordered, ids = ordered[:count], ids[:count]
    ids = ids[~(ordered < sampling.min_p * ordered[0])].sort().values  # negated, so that NaN leaves some tokens
    return ids[_at(weights[ids][None], chance[None])[0]]


def _filters(sequence: Sequence) -> bool:
    sampling = sequence.sampling
    return sampling.top_p < 1 or bool(sampling.min_p) or (sampling.top_k is not None and sampling.top_k > 0)


def _adjusts(sequence: Sequence) -> bool:
    sampling = sequence.sampling
    penalties = sampling.frequency_penalty or sampling.presence_penalty or sampling.repetition_penalty != 1
    return bool(penalties or sampling.logit_bias or sampling.min_tokens or sequence.grammar)


def _adjust(scores: Tensor, sequence: Sequence) -> None:
    """Apply logit bias and penalties in place, and NEVER where a token may not come next."""
    sampling, device = sequence.sampling, scores.device
    if sampling.repetition_penalty != 1:
        known = torch.tensor(sorted({*sequence.prompt, *sequence.answer}), device=device)
        scores[known] *= sampling.repetition_penalty
    if (sampling.frequency_penalty or sampling.presence_penalty) and sequence.answer:
        used, times = torch.tensor(sequence.answer, device=device).unique(return_counts=True)
        scores[used] -= sampling.frequency_penalty * times + sampling.presence_penalty
    for token, bias in sampling.logit_bias.items():
        scores[token] += bias
    if sequence.grammar is not None:
        allowed = torch.frombuffer(bytearray(sequence.grammar.allowed()), dtype=torch.uint8)[: len(scores)]
        scores[: len(allowed)].masked_fill_(allowed.to(device) == 0, NEVER)
        scores[len(allowed) :] = NEVER
    if len(sequence.answer) < sampling.min_tokens and sequence.ends:
        _forbid_ends(scores, sorted(sequence.ends))


def _forbid_ends(scores: Tensor, ends: list[int]) -> None:
    """Put NEVER where a token would end the answer too early, unless its grammar allows no other."""
    own = scores[ends].clone()
    scores[ends] = NEVER
    if bool((scores <= NEVER).all()):
        scores[ends] = own
