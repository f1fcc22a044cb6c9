"""The contract of trainers that train step by step, to run on your own:

    class TestMySteps(StepTrainerContract):
        @pytest.fixture
        def trainer(self):
            return MyTrainer()

        @pytest.fixture
        def base_model(self):
            return "my-base"

The base model has at least the tokens 0 to 99 and reads rows of 12; `tolerance` is by how much equal results may
differ when rows are computed together.
"""

import io
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from modelyard.domain.training_run import AdamParams, AdapterConfig, Loss, Objective, Rows, TargetRow, token_objective
from modelyard.errors import InvalidInput
from modelyard.protocols import OpenRun

Files = Mapping[str, bytes]
Opens = Callable[..., OpenRun]

ADAM = AdamParams(learning_rate=1e-3)


def target_rows(seed: int, count: int = 3, k: int = 1) -> list[TargetRow]:
    chance = random.Random(seed)  # noqa: S311 - data
    return [
        TargetRow([chance.randrange(100) for _ in range(size)], [chance.randrange(100) for _ in range(size * k)], k)
        for size in (chance.randint(4, 12) for _ in range(count))
    ]


def cross_entropy(rows: Sequence[TargetRow], weight: float = 1.0) -> Objective:
    return token_objective("cross_entropy", {}, rows, [{"weights": [weight] * len(row.targets)} for row in rows])


def importance_sampling(rows: Sequence[TargetRow], sampled: Rows) -> Objective:
    columns = [
        {"logprobs": old, "advantages": [1.0 if place < len(old) / 2 else -1.0 for place in range(len(old))]}
        for old in sampled
    ]
    return token_objective("importance_sampling", {}, rows, columns)


def read(files: Mapping[str, Any]) -> Files:
    return {name: b"".join(chunks) for name, chunks in files.items()}


def flat(rows: Rows) -> list[float]:
    return [value for row in rows for value in row]


class StepTrainerContract:
    """The laws of `modelyard.protocols.OpenRun`, for the fixtures `trainer` and `base_model`."""

    @pytest.fixture
    def tolerance(self) -> float:
        """By how much log-probabilities may differ that are equal except for rounding."""
        return 1e-5

    @pytest.fixture
    def adapter(self) -> AdapterConfig:
        return AdapterConfig(rank=4, seed=3, train_unembed=False)

    @pytest.fixture
    def opens(self, trainer: Any, base_model: str, adapter: AdapterConfig) -> Opens:
        def open_run(files: Files | None = None, adapter: AdapterConfig = adapter) -> OpenRun:
            held = files or {}
            run: OpenRun = trainer.open_run(base_model, adapter, frozenset(held), lambda name: io.BytesIO(held[name]))
            return run

        return open_run

    def test_there_is_a_log_probability_for_each_target(self, opens: Opens, tolerance: float) -> None:
        run = opens()
        for k in (1, 3):
            rows = target_rows(1, k=k)
            scores = run.score(rows)
            assert [len(row) for row in scores] == [len(row.targets) for row in rows]
            assert max(flat(scores)) <= 0
        one = TargetRow(rows[0].inputs, list(rows[0].targets[::3]))
        assert run.score([one])[0] == pytest.approx(scores[0][::3], abs=tolerance)
        assert list(run.score([])) == []

    def test_a_target_depends_on_what_comes_before_it_alone(self, opens: Opens, tolerance: float) -> None:
        (row,) = target_rows(2, count=1)
        run = trained(opens(), 1)
        shorter = TargetRow(row.inputs[:-1], row.targets[:-1])
        assert run.score([shorter])[0] == pytest.approx(run.score([row])[0][:-1], abs=tolerance)

    def test_a_score_is_what_accumulating_returns_and_changes_nothing(self, opens: Opens, tolerance: float) -> None:
        rows, others = target_rows(3), target_rows(4)
        left, right = opens(), opens()
        right.score(others)
        scores, loss = left.accumulate(rows, cross_entropy(rows))
        assert flat(right.score(rows)) == pytest.approx(flat(scores), abs=tolerance)
        assert loss.value == pytest.approx(-sum(flat(scores)))
        right.accumulate(rows, cross_entropy(rows))
        right.score(others)
        assert stepped(left) == stepped(right)

    def test_calls_add_up(self, opens: Opens, tolerance: float) -> None:
        rows = target_rows(5, count=4)
        once, twice = trained(opens(), 6), trained(opens(), 6)
        once.accumulate(rows, cross_entropy(rows))
        for part in (rows[:1], rows[1:]):
            twice.accumulate(part, cross_entropy(part))
        norms = [run.optim_step(ADAM)["grad_norm"] for run in (once, twice)]
        assert norms[0] == pytest.approx(norms[1], rel=tolerance)
        assert flat(once.score(rows)) == pytest.approx(flat(twice.score(rows)), abs=100 * tolerance)

    def test_the_gradient_is_that_of_the_objective(self, opens: Opens, tolerance: float) -> None:
        """A step of plain size along it changes the loss by its squared norm, to first order."""
        rows = target_rows(7)
        norms = []
        for weight in (1.0, 0.5, -2.0):
            run = trained(opens(), 8)
            run.accumulate(rows, cross_entropy(rows, weight))
            norms.append(run.optim_step(ADAM)["grad_norm"])
        assert norms[0] > 0
        assert [norm / norms[0] for norm in norms] == pytest.approx([1.0, 0.5, 2.0], rel=tolerance)

    def test_derivatives_of_zero_are_not_trained(self, opens: Opens) -> None:
        rows = target_rows(9)
        run = opens()
        before = read(run.files())
        run.accumulate(rows, cross_entropy(rows, 0.0))
        assert run.optim_step(ADAM)["grad_norm"] == 0
        assert read(run.files()) == before

    def test_a_step_clears_the_gradients(self, opens: Opens) -> None:
        rows = target_rows(10)
        run = opens()
        run.accumulate(rows, cross_entropy(rows))
        assert run.optim_step(ADAM)["grad_norm"] > 0
        assert run.optim_step(ADAM)["grad_norm"] == 0

    def test_clipping_limits_the_step_and_not_what_is_reported(self, opens: Opens) -> None:
        rows, norms = target_rows(11), []
        moved = []
        for clip in (0.0, 1e-3):
            run = opens()
            run.accumulate(rows, cross_entropy(rows))
            norms.append(run.optim_step(AdamParams(learning_rate=1e-3, eps=1.0, grad_clip_norm=clip))["grad_norm"])
            moved.append(read(run.files()))
        assert norms[0] == norms[1]
        assert moved[0] != moved[1]

    def test_decay_draws_weights_to_zero(self, opens: Opens) -> None:
        run = trained(opens(), 12)
        rows = target_rows(12)
        base, before = flat(opens().score(rows)), flat(run.score(rows))
        run.optim_step(AdamParams(learning_rate=1.0, beta1=0.0, weight_decay=0.9))
        after = flat(run.score(rows))
        assert distance(after, base) < distance(before, base) / 2

    def test_it_learns(self, opens: Opens) -> None:
        rows, run = target_rows(13), opens()
        costs = []
        for _ in range(8):
            _, loss = run.accumulate(rows, cross_entropy(rows))
            costs.append(loss.value)
            run.optim_step(AdamParams(learning_rate=5e-3))
        assert costs[-1] < costs[0]

    def test_what_has_an_advantage_becomes_likelier(self, opens: Opens) -> None:
        rows, run = target_rows(14), opens()
        sampled = run.score(rows)
        values = []
        for _ in range(6):
            _, loss = run.accumulate(rows, importance_sampling(rows, sampled))
            values.append(loss.value)
            run.optim_step(AdamParams(learning_rate=5e-3))
        assert values[-1] < values[0]

    def test_an_objective_sees_all_rows_at_once_and_in_order(self, opens: Opens, tolerance: float) -> None:
        rows, run, seen = target_rows(15, count=9), opens(), []

        def of(new: Rows) -> Loss:
            seen.append([list(row) for row in new])
            return Loss(0.0, [[0.0] * len(row) for row in new], {})

        scores, _ = run.accumulate(rows, Objective(of))
        assert flat(seen[0]) == pytest.approx(flat(run.score(rows)), abs=tolerance)
        assert flat(scores) == pytest.approx(flat(seen[0]), abs=tolerance)

    def test_a_state_resumes_to_the_same_bytes(self, opens: Opens) -> None:
        rows = target_rows(16)
        whole, ends = opens(), []
        for number in range(4):
            if number == 2:
                resumed = opens(read(whole.state()))
                assert read(resumed.files()) == read(whole.files())
                ends.append(resumed)
            for run in (whole, *ends):
                run.accumulate(rows, cross_entropy(rows))
                run.optim_step(ADAM)
        assert read(resumed.state()) == read(whole.state())
        assert flat(resumed.score(rows)) == flat(whole.score(rows))

    def test_a_checkpoint_resumes_the_weights_without_the_optimizer(self, opens: Opens) -> None:
        rows = target_rows(17)
        run = trained(opens(), 17)
        state, files = read(run.state()), read(run.files())
        assert files.items() <= state.items()
        loaded, resumed = opens(files), opens(state)
        assert flat(loaded.score(rows)) == flat(run.score(rows)) == flat(resumed.score(rows))
        for one in (loaded, resumed):
            one.accumulate(rows, cross_entropy(rows))
            one.optim_step(ADAM)
        assert read(loaded.files()) != read(resumed.files())

    def test_a_state_has_no_gradients(self, opens: Opens) -> None:
        run = trained(opens(), 18)
        before = read(run.state())
        rows = target_rows(18)
        run.accumulate(rows, cross_entropy(rows))
        assert read(run.state()) == before

    def test_equal_calls_give_equal_bytes(self, opens: Opens) -> None:
        left, right = (read(trained(opens(), 19).state()) for _ in range(2))
        assert left == right

    def test_runs_on_one_base_do_not_notice_each_other(self, opens: Opens) -> None:
        alone = [ending(opens, seed) for seed in range(3)]
        runs = [opens() for _ in range(3)]
        for step in range(3):
            for seed, run in enumerate(runs):
                train_once(run, seed, step)
        assert [read(run.state()) for run in runs] == alone
        runs[0].close()
        assert read(runs[1].state()) == alone[1]

    def test_runs_in_many_threads_do_not_notice_each_other(self, opens: Opens) -> None:
        alone = [ending(opens, seed) for seed in range(4)]
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(lambda seed: ending(opens, seed), range(4))) == alone

    @pytest.mark.parametrize(
        ("kind", "token"), [("inputs", -1), ("targets", -1), ("inputs", 10**9), ("targets", 10**9)]
    )
    def test_a_token_that_the_model_lacks_is_named_and_changes_nothing(
        self, opens: Opens, kind: str, token: int
    ) -> None:
        run, (good, bad) = opens(), target_rows(20, count=2)
        tokens = {"inputs": list(bad.inputs), "targets": list(bad.targets)}
        tokens[kind][2] = token
        rows = [good, TargetRow(tokens["inputs"], tokens["targets"])]
        for call in (run.score, lambda some: run.accumulate(some, cross_entropy(some))):
            with pytest.raises(InvalidInput) as caught:
                call(rows)
            assert caught.value.problems[0].loc == (1, kind, 2)
        assert run.optim_step(ADAM)["grad_norm"] == 0

    def test_a_row_that_is_too_long_is_named(self, opens: Opens) -> None:
        run = opens()
        with pytest.raises(InvalidInput) as caught:
            run.score([TargetRow([1], [1]), TargetRow([1] * 10**6, [1] * 10**6)])
        assert caught.value.problems[0].loc == (1, "inputs")

    def test_it_may_be_closed_twice(self, opens: Opens) -> None:
        run = opens()
        run.close()
        run.close()


def distance(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(abs(a - b) for a, b in zip(left, right, strict=True))


def train_once(run: OpenRun, seed: int, step: int) -> None:
    rows = target_rows(100 * seed + step)
    run.accumulate(rows, cross_entropy(rows))
    run.optim_step(ADAM)


def trained(run: OpenRun, seed: int) -> OpenRun:
    for step in range(3):
        train_once(run, seed, step)
    return run


def ending(opens: Opens, seed: int) -> Files:
    return read(trained(opens(), seed).state())


def stepped(run: OpenRun) -> Files:
    run.optim_step(ADAM)
    return read(run.state())
