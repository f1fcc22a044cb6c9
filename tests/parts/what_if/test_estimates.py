"""The doubly robust estimate: what it is exactly on small traffic, when it says nothing, and how often its interval
holds the truth in 2,000 worlds."""

import random
from functools import partial

import pytest

from modelyard.parts.what_if.estimates import (
    LEAST_COVERAGE,
    LEAST_USERS,
    Counterfactual,
    LoggedAnswer,
    doubly_robust,
    effective_size,
)


def world(
    seed: int,
    users: int,
    stages: tuple[float, ...],
    rates: tuple[float, float],
    speaks: tuple[float, float],
    known: bool = False,
) -> list[LoggedAnswer]:
    """Traffic of users of whom each stage gives another share the model: rates and how often they speak are those of
    the model, then of what else answers. Some users like everything better, and some requests are harder."""
    draw, rows = random.Random(seed), []
    for user in range(users):
        place, mood = draw.random(), draw.random() - 0.5
        for share in stages:
            for _ in range(1 + (draw.random() < 0.5)):
                seen, ease = place < share, draw.random()
                rate = rates[not seen] + 0.3 * mood + (0.4 * (ease - 0.5) if known else 0)
                score = float(draw.random() < rate) if draw.random() < speaks[not seen] else None
                rows.append(LoggedAnswer(f"user {user}", seen, share, score, ease if known else None))
    return rows


WORLDS = {
    "one stage": partial(world, users=240, stages=(0.25,), rates=(0.6, 0.5), speaks=(1.0, 1.0)),
    "two stages, of whom some speak": partial(
        world, users=300, stages=(0.15, 0.3), rates=(0.6, 0.5), speaks=(0.6, 0.4)
    ),
    "requests that are known": partial(
        world, users=300, stages=(0.25,), rates=(0.7, 0.5), speaks=(0.6, 0.6), known=True
    ),
}
TRUTH = {"one stage": 0.6, "two stages, of whom some speak": 0.6, "requests that are known": 0.7}


def covered(name: str, count: int) -> float:
    """The share of worlds whose interval holds the truth."""
    found = [doubly_robust(WORLDS[name](seed)) for seed in range(count)]
    told = [one.interval for one in found if one.interval is not None]
    assert len(told) > 0.9 * count
    return sum(TRUTH[name] in interval for interval in told) / len(told)


@pytest.mark.parametrize("name", list(WORLDS))
def test_intervals_hold_the_truth(name: str) -> None:
    """In 2,000 worlds, 95 +- 1 % of the intervals do."""
    assert 0.94 <= covered(name, 2000) <= 0.96


def test_what_everybody_got_is_its_mean() -> None:
    rows = [LoggedAnswer(str(user), True, 1.0, user % 2) for user in range(100)]
    found = doubly_robust(rows)
    assert found.mean == pytest.approx(0.5)
    assert found.difference == pytest.approx(0.0)
    assert (found.coverage, found.users, found.effective_users) == (1.0, 100, pytest.approx(100))


def test_answers_are_weighted_by_their_chance() -> None:
    """Users of whom few had the model count as much as users of whom many had it."""
    rare = [LoggedAnswer(f"a{user}", user < 20, 0.1, 1.0 if user < 20 else 0.5) for user in range(200)]
    often = [LoggedAnswer(f"b{user}", user < 100, 0.5, 0.0 if user < 100 else 0.5) for user in range(200)]
    found = doubly_robust([*rare, *often])
    assert found.mean == pytest.approx(0.5, abs=0.05)
    naive = sum(row.score or 0 for row in [*rare, *often] if row.seen) / 120
    assert naive == pytest.approx(1 / 6)


def test_what_is_predicted_makes_the_interval_narrower() -> None:
    def traffic(known: bool) -> list[LoggedAnswer]:
        draw, rows = random.Random(3), []
        for user in range(500):
            ease, seen = draw.random(), draw.random() < 0.3
            rows.append(LoggedAnswer(str(user), seen, 0.3, ease, ease if known else None))
        return rows

    def width(found: Counterfactual) -> float:
        assert found.interval is not None
        return found.interval.high - found.interval.low

    assert width(doubly_robust(traffic(known=True))) < 0.7 * width(doubly_robust(traffic(known=False)))


def test_a_wrong_prediction_does_not_bias() -> None:
    draw, means = random.Random(5), []
    for _ in range(200):
        rows = []
        for user in range(200):
            seen = draw.random() < 0.4
            rows.append(
                LoggedAnswer(str(user), seen, 0.4, float(draw.random() < (0.7 if seen else 0.2)), draw.random())
            )
        found = doubly_robust(rows)
        means.append(found.mean or 0)
    assert sum(means) / len(means) == pytest.approx(0.7, abs=0.015)


def test_answers_to_one_user_are_one_draw() -> None:
    once = [LoggedAnswer(str(user), user % 2 == 0, 0.5, float(user % 3 == 0)) for user in range(120)]
    often = [row for row in once for _ in range(10)]
    one, many = doubly_robust(once), doubly_robust(often)
    assert one.interval is not None
    assert many.interval is not None
    assert many.interval.high - many.interval.low == pytest.approx(one.interval.high - one.interval.low, rel=0.05)
    assert many.effective_users == pytest.approx(one.effective_users)


def test_scores_that_are_all_the_same_have_an_interval() -> None:
    found = doubly_robust([LoggedAnswer(str(user), user % 2 == 0, 0.5, 1.0) for user in range(200)])
    assert found.interval is not None
    assert found.interval.low < 0.99
    assert found.interval.high == 1.0


def test_nothing_is_said_of_few_users() -> None:
    rows = [LoggedAnswer(str(user), user < 20, 0.1, 1.0) for user in range(200)]
    found = doubly_robust(rows)
    assert (found.mean, found.interval, found.difference) == (None, None, None)
    assert found.effective_users < LEAST_USERS
    assert "20 users scored the model's answers" in found.reason
    assert "about 10 more" in found.reason
    assert str(found) == f"no estimate: {found.reason}"


def test_nothing_is_said_of_traffic_that_the_model_could_not_answer() -> None:
    seen = [LoggedAnswer(str(user), user % 2 == 0, 0.5, 1.0) for user in range(100)]
    before = [LoggedAnswer(str(user), False, 0.0, 1.0) for user in range(150)]
    found = doubly_robust([*seen, *before])
    assert found.coverage == 0.4 < LEAST_COVERAGE
    assert found.mean is None
    assert "40% of 250 answers" in found.reason


def test_nothing_is_said_of_no_traffic() -> None:
    found = doubly_robust([])
    assert (found.answers, found.mean) == (0, None)
    assert "no answer has an arm" in found.reason


def test_nothing_is_said_where_nobody_had_the_model_or_nobody_spoke() -> None:
    for rows in ([LoggedAnswer("a", False, 0.5, 1.0)], [LoggedAnswer("a", True, 0.5)]):
        found = doubly_robust(rows)
        assert found.mean is None
        assert "0 users scored" in found.reason


def test_equal_weights_count_whole() -> None:
    assert effective_size([2.0, 2.0, 2.0]) == pytest.approx(3)
    assert effective_size([3.0, 0.0, 0.0]) == pytest.approx(1)
    assert effective_size([]) == 0
