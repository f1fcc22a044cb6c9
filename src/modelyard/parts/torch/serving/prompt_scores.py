"""The log-probabilities of a prompt's own tokens, computed from the hidden states while the prompt is read.

A scored prompt is read from its beginning. It copies nothing from other sequences, because the hidden states of copied
tokens are not kept; otherwise it shares passes with other prompts.
"""

import torch

from modelyard.parts.torch.network import Network
from modelyard.parts.torch.serving.sequence import SampledToken, Sequence

LOGITS = 2**25
"""Logits that are computed at a time, at most: a long prompt and a large vocabulary have more."""


def score(network: Network, sequence: Sequence, hidden: torch.Tensor, start: int) -> None:
    """Add the log-probabilities of the prompt's tokens that follow these hidden states (tokens x size).

    The first of the states belongs to token `start`. Scores from a pass that failed later are kept.
    """
    first = max(start, len(sequence.scored))
    targets = sequence.prompt[first + 1 : start + len(hidden) + 1]
    size = max(1, LOGITS // network.vocabulary)
    for begin in range(0, len(targets), size):
        part = targets[begin : begin + size]
        states = hidden[first - start + begin :][: len(part)]
        sequence.scored += _scores(network.logits(states).log_softmax(-1), part, sequence.top_of_prompt or 0)


def _scores(logprobs: torch.Tensor, targets: list[int], count: int) -> list[SampledToken]:
    """Return each target with its log-probability (tokens x vocabulary), and the `count` likeliest tokens there."""
    own = logprobs.gather(1, torch.tensor(targets, device=logprobs.device)[:, None])
    ranks = ((logprobs > own).sum(-1) + 1).tolist()
    found = zip(targets, own[:, 0].tolist(), _likeliest(logprobs, count), ranks, strict=True)
    return [SampledToken(token, min(logprob, 0.0), top, rank=rank) for token, logprob, top, rank in found]


def _likeliest(logprobs: torch.Tensor, count: int) -> list[list[tuple[int, float]]]:
    """Return the ids and log-probabilities of the `count` likeliest tokens of each row, the likeliest first."""
    best = logprobs.topk(count)
    rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [[(token, min(value, 0.0)) for token, value in zip(*row, strict=True)] for row in rows]
