"""The losses that callers of step-by-step training name."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from modelyard.errors import InvalidInput
from modelyard.trainers import TOKEN_LOSSES, TargetRow, token_objective

ROW = TargetRow([1, 2, 3], [2, 3, 4])
LOGS = st.floats(-8, 0)
NUMBERS = st.floats(-3, 3)


def columns_of(name, sampled, numbers):
    return {"weights": numbers} if name == "cross_entropy" else {"logprobs": sampled, "advantages": numbers}


def of(name, new, sampled=(0.0,) * 3, numbers=(1.0,) * 3, **settings):
    return token_objective(name, settings, [ROW], [columns_of(name, sampled, numbers)]).of([new])


# ---- numbers worked out by hand --------------------------------------------------------------------------------------


def test_cross_entropy_is_the_weighted_cost_of_each_target():
    loss = of("cross_entropy", [-1.0, -2.0, -4.0], numbers=[0.0, 0.5, -1.0])
    assert loss.value == loss.metrics["loss:sum"] == pytest.approx(0.5 * 2 - 4)
    assert loss.derivatives == [[0.0, -0.5, 1.0]]


def test_importance_sampling_weighs_by_the_ratio():
    loss = of("importance_sampling", [math.log(0.5)] * 3, [math.log(0.25)] * 3, [1.0, -3.0, 0.0])
    assert loss.value == pytest.approx(-2 * 1 + 2 * 3)
    assert loss.derivatives[0] == pytest.approx([-2.0, 6.0, 0.0])


def test_ppo_takes_the_lesser_gain_and_does_not_differentiate_a_clipped_one():
    """Ratios 2, 2, 0.5; clipped to 1.2, 1.2, 0.8 by default."""
    new, sampled = [math.log(0.5)] * 3, [math.log(0.25), math.log(0.25), 0.0]
    loss = of("ppo", new, sampled, [1.0, -1.0, 1.0])
    assert loss.value == pytest.approx(-1.2 + 2 - 0.5)
    assert loss.derivatives[0] == pytest.approx([0.0, 2.0, -0.5])


def test_the_thresholds_of_ppo_are_ratios():
    new, sampled = [math.log(0.5)] * 3, [math.log(0.25)] * 3
    assert of("ppo", new, sampled, clip_high_threshold=1.5).value == pytest.approx(-4.5)
    assert of("ppo", new, sampled, clip_low_threshold=0.1, clip_high_threshold=3).value == pytest.approx(-6)


def test_cispo_clips_the_weight_of_a_log_probability_and_trains_every_token():
    """By default ratios are clipped above alone, at 4: here 8, 0.5 and 1."""
    new = [math.log(0.5)] * 3
    loss = of("cispo", new, [math.log(0.0625), 0.0, math.log(0.5)], [1.0, 1.0, -2.0])
    assert loss.value == pytest.approx(math.log(2) * (4 + 0.5 - 2))
    assert loss.derivatives[0] == pytest.approx([-4.0, -0.5, 2.0])


def test_dro_has_a_quadratic_penalty():
    loss = of("dro", [-1.0, -2.0, -3.0], [-2.0, -2.0, -1.0], [1.0, 2.0, 0.0], beta=0.5)
    assert loss.value == pytest.approx((1 + 0.25) + 4 + 0.25 * 4)
    assert loss.derivatives[0] == pytest.approx([0.5 - 1, -2.0, 0.5 * -2])


def test_rows_add_up_and_several_targets_are_in_order():
    rows = [TargetRow([1], [2, 3], 2), TargetRow([1, 2], [2, 3])]
    objective = token_objective("cross_entropy", {}, rows, [{"weights": [0.25, 0.75]}, {"weights": [1.0, 2.0]}])
    assert objective.linear
    loss = objective.of([[-1.0, -2.0], [-3.0, -4.0]])
    assert loss.value == 0.25 + 1.5 + 3 + 8
    assert loss.derivatives == [[-0.25, -0.75], [-1.0, -2.0]]


# ---- laws ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(TOKEN_LOSSES) - {"cispo"}))
@given(new=st.tuples(LOGS, LOGS, LOGS), sampled=st.tuples(LOGS, LOGS, LOGS), numbers=st.tuples(*[NUMBERS] * 3))
def test_derivatives_are_finite_differences(name, new, sampled, numbers):
    found, step = of(name, new, sampled, numbers), 1e-5
    for place, ours in enumerate(found.derivatives[0]):
        sides = []
        for by in (-step, 0.0, step):
            moved = [*new[:place], new[place] + by, *new[place + 1 :]]
            sides.append(of(name, moved, sampled, numbers).value)
        left, right = (sides[1] - sides[0]) / step, (sides[2] - sides[1]) / step
        near = 1e-3 * (1 + abs(ours) + abs(found.value))
        assert min(left, right) - near <= ours <= max(left, right) + near  # between both, at a corner


@given(new=st.tuples(LOGS, LOGS, LOGS), sampled=st.tuples(LOGS, LOGS, LOGS), numbers=st.tuples(*[NUMBERS] * 3))
def test_cispo_is_differentiated_with_the_weight_held(new, sampled, numbers):
    found = of("cispo", new, sampled, numbers)
    weights = [-min(4.0, math.exp(a - b)) * c for a, b, c in zip(new, sampled, numbers, strict=True)]
    assert found.derivatives[0] == pytest.approx(weights)
    assert found.value == pytest.approx(math.fsum(w * a for w, a in zip(weights, new, strict=True)), abs=1e-9)


@each_case("name", sorted(TOKEN_LOSSES))
def test_a_sampler_that_thought_a_token_impossible_gives_finite_numbers(name):
    loss = of(name, [0.0] * 3, [-1e4] * 3)
    assert all(map(math.isfinite, [loss.value, *loss.derivatives[0]]))


# ---- what is refused -------------------------------------------------------------------------------------------------


def refused(name="ppo", settings=None, row=ROW, columns=None):
    with pytest.raises(InvalidInput) as caught:
        token_objective(name, settings or {}, [ROW, row], [columns_of(name, [0.0] * 3, [1.0] * 3), columns])
    (problem,) = caught.value.problems
    return problem.loc, problem.msg


def test_an_unknown_loss_is_named_with_those_there_are():
    for name in ("gspo", "stable_reinforce", "custom", ""):
        loc, message = refused(name)
        assert loc == ("loss_fn",)
        assert repr(name) in message
        assert "cross_entropy, importance_sampling, ppo, cispo, dro" in message


def test_settings_are_those_of_the_loss():
    assert refused("dro", {"clip_low_threshold": 1.0})[0] == ("loss_fn_config", "clip_low_threshold")
    assert "takes none" in refused("cross_entropy", {"beta": 1.0})[1]
    for bad in (math.nan, math.inf, -1.0):
        assert refused("dro", {"beta": bad})[0] == ("loss_fn_config", "beta")
    assert refused("cispo", {"clip_low_threshold": 5.0})[0] == ("loss_fn_config", "clip_low_threshold")


def test_columns_are_those_of_the_loss_and_as_long_as_the_targets():
    whole = {"logprobs": [0.0] * 3, "advantages": [1.0] * 3}
    assert refused(columns={"advantages": [1.0] * 3})[0] == (1, "logprobs")
    assert refused(columns={**whole, "mask": [1.0] * 3})[0] == (1, "mask")
    assert refused(columns={**whole, "advantages": [1.0] * 2})[0] == (1, "advantages")
    assert refused(columns={**whole, "logprobs": [0.0, math.nan, 0.0]})[0] == (1, "logprobs", 1)


def test_only_cross_entropy_takes_several_targets():
    row = TargetRow([1], [2, 3, 4], 3)
    assert refused(row=row, columns={"logprobs": [0.0] * 3, "advantages": [1.0] * 3})[0] == (1, "target_tokens")
