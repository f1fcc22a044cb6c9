"""The divergence from a teacher: its value by the plain formulas, its derivatives by differences."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard.trainers.distillation import LEAST_REST, divergence_loss

BETAS = (0.0, 0.1, 0.5, 0.9, 1.0)

logits = st.lists(st.floats(-4, 4), min_size=5, max_size=5)


def softmax(values: list[float]) -> list[float]:
    total = math.log(math.fsum(map(math.exp, values)))
    return [value - total for value in values]


def kl(one: list[float], other: list[float]) -> float:
    """KL of two distributions, given as probabilities."""
    return math.fsum(p * math.log(p / q) for p, q in zip(one, other, strict=True))


def plain(model: list[float], teacher: list[float], beta: float) -> float:
    """The divergence of two distributions as the paper writes it (arXiv 2306.13649)."""
    if beta in (0, 1):
        return kl(teacher, model) if beta == 0 else kl(model, teacher)
    mixed = [beta * t + (1 - beta) * m for m, t in zip(model, teacher, strict=True)]
    return beta * kl(teacher, mixed) + (1 - beta) * kl(model, mixed)


def loss_of(new: list[float], teacher: list[float], beta: float):
    return divergence_loss([new], [teacher], [[len(new)]], beta)


@given(logits, logits, st.sampled_from(BETAS))
def test_of_all_tokens_it_is_the_plain_divergence(model: list[float], teacher: list[float], beta: float) -> None:
    new, known = softmax(model), softmax(teacher)
    wanted = plain([*map(math.exp, new)], [*map(math.exp, known)], beta)
    assert loss_of(new, known, beta).value == pytest.approx(wanted, abs=1e-9)


@given(logits, logits, st.sampled_from(BETAS), st.integers(1, 4))
def test_tokens_that_are_not_named_count_as_one(
    model: list[float], teacher: list[float], beta: float, named: int
) -> None:
    new, known = softmax(model), softmax(teacher)
    joined = [[*map(math.exp, row[:named]), math.fsum(map(math.exp, row[named:]))] for row in (new, known)]
    wanted = plain(*joined, beta)
    assert loss_of(new[:named], known[:named], beta).value == pytest.approx(wanted, abs=1e-9)


@given(logits, logits, st.sampled_from(BETAS), st.integers(1, 5))
def test_a_small_step_against_the_derivatives_lowers_it_as_they_say(
    model: list[float], teacher: list[float], beta: float, named: int
) -> None:
    known = softmax(teacher)[:named]

    def loss(values: list[float]):
        return loss_of(softmax(values)[:named], known, beta)

    share, found = [*map(math.exp, softmax(model))], loss(model)
    (slopes,) = found.derivatives
    by_logit = [
        math.fsum(slope * ((place == at) - share[at]) for place, slope in enumerate(slopes)) for at in range(len(model))
    ]
    for at, slope in enumerate(by_logit):
        moved = [[value + step * (place == at) for place, value in enumerate(model)] for step in (1e-5, -1e-5)]
        measured = (loss(moved[0]).value - loss(moved[1]).value) / 2e-5
        assert slope == pytest.approx(measured, rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("beta", BETAS)
def test_a_model_that_says_what_the_teacher_says_has_nothing_to_learn(beta: float) -> None:
    for known in (softmax([0.3, -1.0, 2.0]), softmax([0.3, -1.0, 2.0])[:1], [0.0], [-1e-9]):
        loss = loss_of(known, known, beta)
        assert loss.value == pytest.approx(0.0, abs=1e-12)
        (slopes,) = loss.derivatives
        by_logit = [slope - math.exp(one) * math.fsum(slopes) for slope, one in zip(slopes, known, strict=True)]
        assert by_logit == pytest.approx([0.0] * len(known), abs=1e-8)


@pytest.mark.parametrize("beta", [0.5, 1.0])
def test_what_the_model_does_outside_of_the_named_tokens_is_no_secret(beta: float) -> None:
    """A teacher that names all that it may say: a model that says something else is far from it."""
    teacher = softmax([1.0, 1.0])
    inside, outside = [math.log(0.5)] * 2, [math.log(0.05)] * 2
    assert loss_of(outside, teacher, beta).value > loss_of(inside, teacher, beta).value + 0.3


@pytest.mark.parametrize("beta", BETAS)
def test_impossible_tokens_give_finite_numbers(beta: float) -> None:
    for new, teacher in (([-800.0, -1.0], [-0.5, -9999.0]), ([0.0], [-700.0]), ([-700.0], [0.0])):
        loss = loss_of(new, teacher, beta)
        assert math.isfinite(loss.value)
        assert all(map(math.isfinite, loss.derivatives[0]))


def test_the_mean_is_over_the_positions_of_all_turns() -> None:
    numbers = random.Random(3)
    sizes = [[2, 1], [3], []]
    rows = [[-1 - 3 * numbers.random() for _ in range(sum(counts))] for counts in sizes]
    teacher = [[-1 - 3 * numbers.random() for _ in row] for row in rows]
    parts = [(rows[0][:2], teacher[0][:2]), (rows[0][2:], teacher[0][2:]), (rows[1], teacher[1])]
    whole = divergence_loss(rows, teacher, sizes, 0.3)
    assert whole.value == pytest.approx(math.fsum(loss_of(*part, 0.3).value for part in parts) / 3)
    assert [len(row) for row in whole.derivatives] == [3, 3, 0]
    assert whole.metrics == {"loss": whole.value, "num_trainable_tokens": 3.0}


def test_nothing_to_learn_from_costs_nothing() -> None:
    assert divergence_loss([], [], [], 0.5).metrics == {"num_trainable_tokens": 0.0}
    assert LEAST_REST < 1e-5
