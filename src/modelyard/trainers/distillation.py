"""How far a model is from its teacher, token by token, as pure functions like those of `losses`."""

import math
from collections.abc import Sequence
from itertools import islice

from modelyard.domain.training_run import Loss, Rows

LEAST_REST = 1e-6
"""What is left of a distribution counts as at least so much: less is what rounding leaves of it."""

LEAST_LOGPROB = -100.0
"""A token that is less likely to a teacher counts as this likely: servers write numbers for what is impossible."""


def divergence_loss(new: Rows, teacher: Rows, sizes: Sequence[Sequence[int]], beta: float) -> Loss:
    """Return the mean divergence (nats) at the positions of some turns; `beta` is that of `DistillConfig`.

    A row has a log-probability for each token that the teacher has one for, position by position; `sizes` are how many
    there are at each. All other tokens count together as one more, so that no probability is left out.
    """
    share = 1 / max(sum(map(len, sizes)), 1)
    values: list[float] = []
    derivatives: list[list[float]] = []
    for row, known, counts in zip(new, teacher, sizes, strict=True):
        ours, theirs, slopes = iter(row), iter(known), list[float]()
        for count in counts:
            value, found = _divergence([*islice(ours, count)], [*islice(theirs, count)], beta)
            values.append(value)
            slopes += [share * slope for slope in found]
        derivatives.append(slopes)
    loss = share * math.fsum(values)
    return Loss(loss, derivatives, {**({"loss": loss} if values else {}), "num_trainable_tokens": float(len(values))})


def _divergence(new: Sequence[float], teacher: Sequence[float], beta: float) -> tuple[float, list[float]]:
    """Return the divergence at one position, and its derivative for each log-probability of the model."""
    ours, theirs = _rest(new), _rest(teacher)
    of_rest, slope = _term(math.log(ours), math.log(theirs), beta)
    by_rest = slope / ours if ours > LEAST_REST else 0.0
    terms = [_term(one, max(known, LEAST_LOGPROB), beta) for one, known in zip(new, teacher, strict=True)]
    value = math.fsum([of_rest, *(found for found, _ in terms)])
    return value, [own - math.exp(one) * by_rest for one, (_, own) in zip(new, terms, strict=True)]


def _rest(logprobs: Sequence[float]) -> float:
    return max(1 - math.fsum(map(math.exp, logprobs)), LEAST_REST)


def _term(model: float, teacher: float, beta: float) -> tuple[float, float]:
    """Return what a token with these log-probabilities adds, and its derivative for the first of them."""
    share, known = math.exp(model), math.exp(teacher)
    if beta == 0:
        return known * (teacher - model), -known
    if beta == 1:
        return share * (model - teacher), share * (model - teacher + 1)
    mixed = math.log(beta * known + (1 - beta) * share)
    gap = (1 - beta) * share * (model - mixed)
    return beta * known * (teacher - mixed) + gap, gap
