"""Retention: which checkpoints stay, which go, and that none goes that is needed."""

from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard.domain.job import JobStatus
from modelyard.domain.models import Checkpoint, Retention
from modelyard.errors import Conflict, InvalidInput, NotFound
from modelyard.protocols import Started, Trained

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def line(*metrics: float | None, **fields: Any) -> list[Checkpoint]:
    """Checkpoints from step 0 on, an hour apart, with a reward where one is given."""
    return [
        Checkpoint(
            f"c{step}",
            "m",
            "acme",
            "p",
            step,
            NOON + timedelta(hours=step),
            "digest",
            {} if reward is None else {"reward": reward},
            **fields,
        )
        for step, reward in enumerate(metrics)
    ]


def kept(policy: Retention, checkpoints: list[Checkpoint], hours: float = 0) -> list[int]:
    now = checkpoints[-1].created_at + timedelta(hours=hours)
    gone = policy.expired(checkpoints, now)
    return [one.step for one in checkpoints if one not in gone]


# ---- the rules ---------------------------------------------------------------------------------------------------


def test_without_any_rule_all_stay() -> None:
    assert kept(Retention("m"), line(*range(5))) == [0, 1, 2, 3, 4]


def test_the_last_ones_stay_and_step_0_with_them() -> None:
    assert kept(Retention("m", keep_last=2), line(*range(6))) == [0, 4, 5]
    assert kept(Retention("m", keep_last=9), line(*range(4))) == [0, 1, 2, 3]


def test_the_best_ones_stay_the_later_of_equals_first() -> None:
    checkpoints = line(0.0, 5.0, 1.0, 5.0, 2.0, 0.0)
    assert kept(Retention("m", keep_best=1, metric="reward"), checkpoints) == [0, 3, 5]
    assert kept(Retention("m", keep_best=2, metric="reward"), checkpoints) == [0, 1, 3, 5]
    assert kept(Retention("m", keep_best=2, metric="reward", lower_is_better=True), checkpoints) == [0, 5]
    assert kept(Retention("m", keep_best=3, metric="reward", lower_is_better=True), checkpoints) == [0, 2, 5]


def test_a_checkpoint_whose_metric_is_not_known_stays_and_takes_no_place_among_the_best() -> None:
    assert kept(Retention("m", keep_best=1, metric="reward"), line(None, 1.0, None, 0.5, None)) == [0, 1, 2, 4]
    assert kept(Retention("m", keep_best=2, metric="other"), line(1.0, 1.0, 1.0)) == [0, 1, 2]


@given(
    st.lists(st.none() | st.floats(-9, 9), min_size=1, max_size=12),
    st.sampled_from(["reward", "token_f1"]),
    st.integers(1, 4),
    st.booleans(),
    st.none() | st.integers(1, 3),
    st.none() | st.floats(1, 10**5),
)
def test_what_was_never_measured_is_never_removed(
    rewards: list[float | None], metric: str, best: int, lower: bool, last: int | None, ttl: float | None
) -> None:
    """However else checkpoints are kept: a metric of evaluations, or one of another training, tells nothing of them."""
    policy, checkpoints = Retention("m", last, best, metric, lower, ttl), line(*rewards)
    gone = policy.expired(checkpoints, NOON + timedelta(days=9))
    assert all(metric in one.metrics for one in gone)
    assert len([one for one in checkpoints if metric in one.metrics and one not in gone]) >= min(
        best, len([one for one in checkpoints if metric in one.metrics])
    )


def test_a_metric_that_evaluations_measured_removes_nothing(yard: Any) -> None:
    yard.models.set_retention(yard.model(), keep_last=1, keep_best=("token_f1", 2))
    train(yard, 3)
    yard.models.apply_retention(yard.model())
    assert steps(yard) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("los", r"^keep_best: no checkpoint has 'los', so it removes none; did you mean 'loss'\?$"),
        ("token_f1", r"^keep_best: no checkpoint has 'token_f1', so it removes none; they have .*loss"),
    ],
)
def test_a_metric_that_no_checkpoint_has_is_told_where_the_rule_is_set(yard: Any, metric: str, said: str) -> None:
    train(yard, 2)
    with pytest.warns(UserWarning, match=said) as warned:
        yard.models.set_retention(yard.model(), keep_last=1, keep_best=(metric, 1))
    assert warned[0].filename == __file__
    assert yard.models.apply_retention(yard.model()) == ()
    yard.models.set_retention(yard.model(), keep_best=("loss", 1))
    yard.models.set_retention(yard.model(), keep_last=5)


def test_the_young_ones_stay() -> None:
    policy = Retention("m", ttl=7200.0)
    assert kept(policy, line(*range(6))) == [0, 4, 5]
    assert kept(policy, line(*range(6)), hours=100) == [0, 5]


def test_one_rule_is_enough_to_stay() -> None:
    policy = Retention("m", keep_last=1, keep_best=1, metric="reward", ttl=3601.0)
    assert kept(policy, line(0.0, 9.0, 0.0, 0.0, 0.0, 0.0)) == [0, 1, 4, 5]


@given(
    rewards=st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=12),
    pinned=st.sets(st.integers(0, 11)),
    last=st.none() | st.integers(1, 12),
    best=st.none() | st.integers(1, 12),
    ttl=st.none() | st.floats(1, 1e6),
)
def test_what_must_stay_stays_under_every_policy(
    rewards: list[float | None], pinned: set[int], last: int | None, best: int | None, ttl: float | None
) -> None:
    checkpoints = [attrs.evolve(one, pinned=one.step in pinned) for one in line(*rewards)]
    policy = Retention("m", last, best, None if best is None else "reward", ttl=ttl)
    left = kept(policy, checkpoints)
    assert {0, checkpoints[-1].step, *(pinned & set(range(len(rewards))))} <= set(left)
    assert last is None or set(range(len(rewards))[-last:]) <= set(left)
    again = [one for one in checkpoints if one.step in left]
    assert kept(policy, again) == left


@pytest.mark.parametrize(
    ("rule", "loc"),
    [
        ({"keep_last": 0}, "keep_last"),
        ({"keep_last": -1}, "keep_last"),
        ({"keep_best": ("reward", 0)}, "keep_best"),
        ({"keep_best": ("", 1)}, "keep_best"),
        ({"keep_best": ("m" * 129, 1)}, "keep_best"),
        ({"ttl": timedelta(0)}, "ttl"),
        ({"ttl": timedelta(seconds=-1)}, "ttl"),
    ],
)
def test_a_rule_out_of_bounds_is_refused_by_name(yard: Any, rule: dict[str, Any], loc: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        yard.models.set_retention(yard.model(), **rule)
    assert [problem.loc for problem in refused.value.problems] == [(loc,)]
    assert yard.models.get_retention(yard.model()) is None


# ---- on a model --------------------------------------------------------------------------------------------------


def train(yard: Any, jobs: int) -> None:
    for number in range(jobs):
        yard.sft(2, tag=str(number))
    yard.worker().run_until_idle()


def steps(yard: Any) -> list[int]:
    return [checkpoint.step for checkpoint in yard.models.checkpoints(yard.model().id)]


def test_a_policy_is_applied_when_a_checkpoint_is_added_and_the_files_go_too(yard: Any) -> None:
    model = yard.model()
    policy = yard.models.set_retention(model, keep_last=2)
    assert yard.models.get_retention(model.id) == policy
    train(yard, 4)
    assert (steps(yard), len(yard.files())) == ([0, 3, 4], 2)
    train(yard, 1)
    assert (steps(yard), len(yard.files())) == ([0, 4, 5], 2)
    assert yard.models.get(model.id).last_step == 5


def test_a_later_policy_is_applied_on_request(yard: Any) -> None:
    train(yard, 4)
    yard.models.set_retention(yard.model(), keep_last=3, keep_best=("loss", 2), lower_is_better=True)
    yard.models.set_retention(yard.model(), keep_last=1)
    assert steps(yard) == [0, 1, 2, 3, 4]
    assert yard.models.apply_retention(yard.model()) == (1, 2, 3)
    assert (steps(yard), len(yard.files())) == ([0, 4], 1)
    assert yard.models.apply_retention(yard.model().id) == ()


def test_a_model_without_a_policy_keeps_all(yard: Any) -> None:
    train(yard, 2)
    assert yard.models.apply_retention(yard.model()) == ()
    assert steps(yard) == [0, 1, 2]


def test_more_checkpoints_than_one_step_removes_all_go(build: Any) -> None:
    yard = build.build()
    model = yard.model()
    checkpoints = line(*range(451))
    for one in checkpoints[1:]:
        yard.runtime.store.transact(lambda tx, one=one: tx.add(attrs.evolve(one, model_id=model.id)))
    yard.models.set_retention(model, keep_last=1)
    assert yard.models.apply_retention(model) == tuple(range(1, 450))


def test_young_checkpoints_stay_until_their_time_is_over(yard: Any) -> None:
    yard.models.set_retention(yard.model(), ttl=timedelta(hours=1))
    train(yard, 2)
    assert yard.models.apply_retention(yard.model()) == ()
    yard.clock.advance(3600)
    assert yard.models.apply_retention(yard.model()) == (1,)


def test_a_cursor_continues_after_a_checkpoint_that_retention_removed(yard: Any) -> None:
    train(yard, 3)
    first = yard.models.checkpoints(yard.model().id).page(limit=2).items[-1]
    yard.models.set_retention(yard.model(), keep_last=2)
    assert yard.models.apply_retention(yard.model()) == (1,)
    assert [one.step for one in yard.models.checkpoints(yard.model().id).page(after=first.id)] == [2, 3]


def test_a_pinned_checkpoint_cannot_be_deleted_until_it_is_unpinned(yard: Any) -> None:
    train(yard, 3)
    model = yard.model()
    assert yard.models.pin(model, 1).pinned
    yard.models.set_retention(model, keep_last=1)
    assert yard.models.apply_retention(model) == (2,)
    with pytest.raises(Conflict, match="step 1 is pinned; unpin it first"):
        yard.models.delete_checkpoints(model.id, [1])
    assert not yard.models.unpin(model.id, 1).pinned
    assert yard.models.apply_retention(model) == (1,)
    for call in (yard.models.pin, yard.models.unpin):
        with pytest.raises(NotFound):
            call(model, 1)


def test_what_a_running_job_starts_from_or_refers_to_stays(yard: Any) -> None:
    train(yard, 3)
    model = yard.model()
    job = yard.training.rl(model, yard.groups(1.0, 0.5), kl_penalty_reference_step=1)
    yard.abandon(1)
    yard.models.set_retention(model, keep_last=1)
    parent = yard.models.checkpoint(model.id, 3)
    later = attrs.evolve(parent, id="later", step=4, job_id=None)
    yard.runtime.store.transact(lambda tx: tx.add(later))
    assert yard.models.apply_retention(model) == (2,)
    yard.runtime.store.transact(lambda tx: tx.remove(Checkpoint, "later"))
    yard.lose_worker()
    yard.worker().run_until_idle()
    assert job.status is JobStatus.SUCCEEDED
    assert steps(yard) == [0, 4]


def test_what_a_waiting_job_will_refer_to_stays(yard: Any) -> None:
    train(yard, 2)
    ahead = yard.sft(2, tag="ahead")
    job = yard.training.rl(yard.model(), yard.groups(1.0), kl_penalty_reference_step=1)
    yard.models.set_retention(yard.model(), keep_last=1)
    assert yard.models.apply_retention(yard.model()) == ()
    yard.worker().run_until_idle()
    assert [ahead.status, job.status] == [JobStatus.SUCCEEDED] * 2
    assert steps(yard) == [0, 4]


def test_the_policy_goes_with_its_model(yard: Any) -> None:
    model = yard.model()
    yard.models.set_retention(model, keep_last=1)
    yard.models.delete(model.id)
    assert yard.runtime.store.read(lambda s: s.find(type(model), "name", "acme", "p", "m")) is None
    for call in (
        yard.models.get_retention,
        yard.models.apply_retention,
        lambda one: yard.models.set_retention(one, keep_last=1),
    ):
        with pytest.raises(NotFound):
            call(model)
    assert yard.models.get_retention(yard.model()) is None
    with pytest.raises(Exception, match="Retention"):
        yard.runtime.store.read(lambda s: s.get(Retention, model.id))


def test_the_policy_of_another_s_model_is_out_of_reach(yard: Any) -> None:
    model = yard.model()
    train(yard, 2)
    for stranger in (yard.as_tenant("umbrella"), yard.as_tenant("acme", "other")):
        for call in (
            lambda models: models.set_retention(model, keep_last=1),
            lambda models: models.get_retention(model),
            lambda models: models.apply_retention(model),
            lambda models: models.pin(model, 1),
            lambda models: models.unpin(model, 1),
        ):
            with pytest.raises(NotFound):
                call(stranger.models)


def test_a_cancelled_job_removes_nothing(yard: Any) -> None:
    train(yard, 2)
    yard.models.set_retention(yard.model(), keep_last=1)
    job = yard.sft(2)
    yard.trainer.before = lambda item: job.cancel() if item == "trained" else None
    yard.worker().run_until_idle()
    assert steps(yard) == [0, 1, 2]


def test_a_best_by_a_metric_of_the_trainer_is_kept(yard: Any) -> None:
    scores = iter([1.0, 9.0, 2.0, 3.0])

    class Scoring:
        def methods(self, base_model: str) -> tuple[str, ...]:
            return ("sft",)

        def train(self, *_: Any) -> Any:
            yield Started(0)
            yield Trained({"w": [b"x"]}, {"reward": next(scores)})

    yard.runtime = attrs.evolve(yard.runtime, trainers=(Scoring(),))
    yard.models.set_retention(yard.model(), keep_best=("reward", 1))
    train(yard, 4)
    assert steps(yard) == [0, 2, 4]
