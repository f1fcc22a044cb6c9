"""The doubly robust estimate beside cje-eval 0.9 on the same data: users who had the model by the same chance, what a
judge said of its answer to everybody, and what those who had it said."""

import random
from statistics import fmean

import pytest

from modelyard.parts.what_if.estimates import LoggedAnswer, doubly_robust

numpy = pytest.importorskip("numpy")
cje = pytest.importorskip("cje", reason="it has a lane of its own: tests/clients/lanes.py cje")

WORLDS = 60
TRUTH = 0.55


def world(seed: int, users: int = 300, share: float = 0.3) -> list[LoggedAnswer]:
    draw, rows = random.Random(seed), []
    for user in range(users):
        ease, seen = draw.random(), draw.random() < share
        score = float(draw.random() < 0.3 + 0.5 * ease - (0.0 if seen else 0.2))
        rows.append(LoggedAnswer(f"user {user}", seen, share, score, ease))
    return rows


def theirs(rows: list[LoggedAnswer]) -> tuple[float, float, float]:
    found = cje.calibrated_mean_ci(
        numpy.array([row.predicted for row in rows]),
        numpy.array([row.score if row.seen else numpy.nan for row in rows]),
        cluster_ids=numpy.array([row.user for row in rows]),
    )
    return float(found.estimate), float(found.ci[0]), float(found.ci[1])


def ours(rows: list[LoggedAnswer]) -> tuple[float, float, float]:
    found = doubly_robust(rows)
    assert found.mean is not None
    assert found.interval is not None
    return found.mean, found.interval.low, found.interval.high


def test_estimates_and_intervals_are_as_those_of_cje() -> None:
    pairs = [(ours(rows), theirs(rows)) for rows in map(world, range(WORLDS))]
    widths = [fmean(one[side][2] - one[side][1] for one in pairs) for side in (0, 1)]
    apart = fmean(abs(one[0][0] - one[1][0]) for one in pairs)
    covered = [sum(one[side][1] <= TRUTH <= one[side][2] for one in pairs) for side in (0, 1)]
    said = f"apart by {apart:.4f}; widths {widths[0]:.4f} and {widths[1]:.4f}; {covered} of {WORLDS} hold the truth"
    print(said)
    assert apart < 0.1 * widths[1], said
    assert 0.9 < widths[0] / widths[1] < 1.1, said
    assert covered[0] >= 0.88 * WORLDS, said


def test_feedback_that_only_some_give_is_estimated_alike() -> None:
    """As an equal part of those who had the model speaks, their labels are a random part of all."""
    draw, apart = random.Random(1), []
    for seed in range(10):
        rows = [
            LoggedAnswer(row.user, row.seen, row.chance, row.score if draw.random() < 0.7 else None, row.predicted)
            for row in world(seed, users=400, share=0.5)
        ]
        labels = numpy.array([row.score if row.seen and row.score is not None else numpy.nan for row in rows])
        found = cje.calibrated_mean_ci(numpy.array([row.predicted for row in rows]), labels)
        apart.append(abs(float(found.estimate) - ours(rows)[0]) / float(found.se))
    assert fmean(apart) < 0.5
