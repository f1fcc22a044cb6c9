"""The loss on held-out rows: when it is measured, and of what it is the mean."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from modelyard.domain.training_run import Objective
from modelyard.trainers.losses import supervised_loss
from modelyard.trainers.validation import MEASURED_ROWS, Criterion, Validation


@attrs.frozen
class Tokens:
    logprobs: Sequence[float]


class Learner:
    """Knows the log-probabilities of each row, and counts the rows that it has scored."""

    scored = 0

    def scores(self, model: Any, turns: Any) -> Any:
        assert model is None
        self.scored += len(turns)
        return [turn.logprobs for turn in turns]


def validation(rows: Sequence[Sequence[float]], batch: int = 2, steps: int = 10, epochs: int = 1) -> Any:
    criterion: Any = Criterion(
        lambda row: [Tokens(row)],
        lambda turns: Objective(supervised_loss, linear=True),
        lambda turns: sum(len(turn.logprobs) for turn in turns),
    )
    learner: Any = Learner()
    return Validation(learner, criterion, rows, batch, steps, epochs)


@given(st.lists(st.lists(st.floats(-20, 0), max_size=4), max_size=9), st.integers(1, 4))
def test_the_loss_of_all_rows_is_that_of_one_large_batch(rows: list[list[float]], batch: int) -> None:
    tokens = [logprob for row in rows for logprob in row]
    measured = validation(rows, batch).after(10)
    if not tokens:
        assert measured == {}  # no row, or none that fits into the model
    else:
        expected = -sum(tokens) / len(tokens)
        measured.pop("full_valid_loss_error", None)
        assert measured == pytest.approx({"valid_loss": expected, "full_valid_loss": expected})


def test_the_error_is_that_of_the_mean_of_batches() -> None:
    rows = [[-float(number % 7)] for number in range(40)]
    measured = validation(rows, batch=1).after(10)
    values = [-row[0] for row in rows]
    assert measured["full_valid_loss_error"] == pytest.approx(statistics.stdev(values) / math.sqrt(len(values)))
    assert "full_valid_loss_error" not in validation([[-1.0]]).after(10)
    twice = validation([row for row in rows for _ in range(2)], batch=2).after(10)
    assert twice["full_valid_loss_error"] == pytest.approx(measured["full_valid_loss_error"])


@each_case(
    ("steps", "epochs", "full"), [(10, 1, [10]), (10, 2, [5, 10]), (5, 2, [3, 5]), (1, 3, [1]), (7, 3, [3, 5, 7])]
)
def test_all_rows_are_measured_at_the_end_of_each_epoch(steps: int, epochs: int, full: list[int]) -> None:
    every = validation([[-1.0]], steps=steps, epochs=epochs)
    found = [step for step in range(1, steps + 1) if "full_valid_loss" in every.after(step)]
    assert found == full


def test_some_rows_are_measured_now_and_then() -> None:
    rows = [[-1.0]] * (MEASURED_ROWS + 5)
    long = validation(rows, steps=1000)
    assert [step for step in range(1, 200) if long.after(step)] == [50, 100, 150]
    assert long.learner.scored == 3 * MEASURED_ROWS
