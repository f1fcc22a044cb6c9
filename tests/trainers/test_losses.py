import math
import random

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from modelyard.domain.training_config import DPOConfig, RLConfig
from modelyard.trainers.credits import (
    Credit,
    balanced,
    credit_trajectories,
    group_advantages,
    packed,
    trajectory_weights,
)
from modelyard.trainers.losses import (
    TrainedSequence,
    cispo,
    importance_ratios,
    policy_loss,
    ppo,
    preference_loss,
    supervised_loss,
)

LEVELS = ["token", "sequence", "average", "geometric_average"]


def sequence(new, old, advantage=1.0, weight=1.0, **more):
    return TrainedSequence(Credit(0, 0, advantage, weight), new, old, **more)


# ---- SFT -------------------------------------------------------------------------------------------------------


def test_the_supervised_loss_is_the_mean_over_all_trained_tokens_of_the_batch():
    loss = supervised_loss([[-1.0, -2.0, -3.0], [-6.0]])
    assert loss.value == pytest.approx(3.0)
    assert loss.derivatives == ((-0.25, -0.25, -0.25), (-0.25,))
    assert loss.metrics == {"loss": loss.value, "num_trainable_tokens": 4.0}


def test_a_batch_without_trained_tokens_costs_nothing():
    assert str(supervised_loss([[], []]).value) == "0.0"


# ---- DPO ---------------------------------------------------------------------------------------------------------


def plain_preference_loss(new, reference, beta, smoothing):
    """The loss as the paper writes it, pair by pair, without any care for overflow."""
    total = 0.0
    for place in range(0, len(new), 2):
        gaps = [sum(new[at]) - sum(reference[at]) for at in (place, place + 1)]
        share = 1 / (1 + math.exp(-beta * (gaps[0] - gaps[1])))
        total -= (1 - smoothing) * math.log(share) + smoothing * math.log(1 - share)
    return total / (len(new) // 2)


def test_the_preference_loss_by_hand():
    new, reference = [[-1.0, -2.0], [-4.0]], [[-2.0, -3.0], [-3.0]]
    loss = preference_loss(new, reference, DPOConfig(beta=0.5))
    # Rewards 0.5 x (-3 + 5) = 1 and 0.5 x (-4 + 3) = -0.5; sigmoid(1.5) = 0.817574476...
    assert loss.value == pytest.approx(0.20141327798275246)
    assert loss.metrics == {
        "loss": loss.value,
        "accuracy": 1.0,
        "margin": 1.5,
        "chosen_reward": 1.0,
        "rejected_reward": -0.5,
        "num_trainable_tokens": 3.0,
    }
    slope = 0.5 * (1 - 0.8175744761936437)
    assert loss.derivatives[0] == pytest.approx((-slope, -slope))
    assert loss.derivatives[1] == pytest.approx((slope,))


def test_smoothed_labels_by_hand():
    loss = preference_loss([[-1.0], [-2.0]], [[-1.5], [-1.5]], DPOConfig(beta=1.0, label_smoothing=0.25))
    # The margin is 1: 0.75 x 0.313261687... + 0.25 x 1.313261687...; sigmoid(1) - 0.75 = -0.018941421...
    assert loss.value == pytest.approx(0.5632616875182228)
    assert loss.derivatives == (pytest.approx((-0.018941421369995104,)), pytest.approx((0.018941421369995104,)))


def test_the_model_itself_as_its_reference_costs_log_two_and_prefers_nothing():
    rows = [[-1.0, -0.5], [-3.0], [-0.25], [-2.0, -7.0]]
    loss = preference_loss(rows, rows, DPOConfig(beta=0.3))
    assert loss.value == pytest.approx(math.log(2))
    assert (loss.metrics["accuracy"], loss.metrics["margin"]) == (0.0, 0.0)
    assert [row[0] for row in loss.derivatives] == pytest.approx([-0.075, 0.075, -0.075, 0.075])


def test_the_accuracy_is_the_share_of_pairs_in_the_right_order():
    new = [[-1.0], [-2.0], [-2.0], [-1.0], [-1.0], [-1.0], [-1.0], [-5.0]]
    metrics = preference_loss(new, [[-1.0]] * 8, DPOConfig(beta=1.0)).metrics
    assert metrics["accuracy"] == 0.5
    assert metrics["chosen_reward"] == pytest.approx(-0.25)
    assert metrics["rejected_reward"] == pytest.approx(-1.25)


def test_a_batch_without_pairs_has_a_loss_of_zero_and_finite_metrics():
    loss = preference_loss([], [], DPOConfig())
    assert (loss.value, loss.derivatives) == (0.0, ())
    assert all(value == 0.0 for value in loss.metrics.values())


def test_rewards_far_apart_overflow_nowhere():
    for sign in (1, -1):
        loss = preference_loss([[sign * 1e5], [-sign * 1e5]], [[0.0], [0.0]], DPOConfig(beta=1.0))
        assert loss.value == (0.0 if sign > 0 else 2e5)
        assert loss.derivatives[0][0] == (0.0 if sign > 0 else -1.0)


logprobs = st.floats(-8, 0)
answers = st.lists(st.tuples(logprobs, logprobs), min_size=1, max_size=4)


@given(
    st.lists(st.tuples(answers, answers), min_size=1, max_size=3),
    st.floats(0.01, 0.2),
    st.sampled_from([0.0, 0.1, 0.4]),
)
def test_the_preference_loss_and_its_derivatives_are_those_of_the_plain_formula(pairs, beta, smoothing):
    rows = [answer for pair in pairs for answer in pair]
    new, reference = ([[token[side] for token in row] for row in rows] for side in (0, 1))
    loss = preference_loss(new, reference, DPOConfig(beta=beta, label_smoothing=smoothing))
    assert loss.value == pytest.approx(plain_preference_loss(new, reference, beta, smoothing), rel=1e-6, abs=1e-9)
    for place, row in enumerate(new):
        for token in range(len(row)):
            sides = []
            for nudge in (1e-5, -1e-5):
                nudged = [list(one) for one in new]
                nudged[place][token] += nudge
                sides.append(plain_preference_loss(nudged, reference, beta, smoothing))
            assert loss.derivatives[place][token] == pytest.approx((sides[0] - sides[1]) / 2e-5, rel=1e-3, abs=1e-6)


# ---- advantages --------------------------------------------------------------------------------------------------


def test_an_advantage_is_the_gap_to_the_mean_over_the_population_deviation():
    assert group_advantages([0.0, 2.0, 4.0]) == pytest.approx(
        [-2 / (math.sqrt(8 / 3) + 1e-6), 0, 2 / (math.sqrt(8 / 3) + 1e-6)]
    )
    assert group_advantages([0.0, 2.0, 4.0], scale_rewards=False) == [-2.0, 0.0, 2.0]


@given(st.floats(-1e6, 1e6), st.integers(1, 9))
def test_equal_rewards_give_no_advantage_at_any_rounding(reward, members):
    assert group_advantages([reward] * members) == [0.0] * members


def test_rounding_makes_no_advantage():
    assert group_advantages([0.1, 0.2, 0.3])[1] == 0.0


def test_an_empty_group_has_no_advantages():
    assert group_advantages([]) == []


@given(st.lists(st.integers(1, 500), min_size=1, max_size=20))
def test_weights_have_mean_one_over_tokens_and_give_each_trajectory_the_same_say(tokens):
    weights = trajectory_weights(tokens)
    shares = [weight * count for weight, count in zip(weights, tokens, strict=True)]
    assert sum(shares) / sum(tokens) == pytest.approx(1.0)
    assert shares == pytest.approx([shares[0]] * len(tokens))


@each_case(("balance", "down", "up"), [(0.25, -1.5, 4.0), (-0.25, -2.0, 3.0), (0.0, -2.0, 4.0), (1.0, 0.0, 4.0)])
def test_the_balance_softens_one_sign_only(balance, down, up):
    assert (balanced(-2.0, balance), balanced(4.0, balance)) == (down, up)


def test_credit_by_hand_two_groups_of_unequal_length():
    groups = [[(0.0, 1), (2.0, 3)], [(5.0, 7), (5.0, 9)], []]
    first, second = credit_trajectories(groups, RLConfig(scale_rewards=False))
    # Weights 1 and 1/3, over their token mean (1 x 1 + 3 x 1/3) / 4 = 1/2; |advantages| 1, so the mean size is 1.
    assert first == Credit(0, 0, pytest.approx(-1.0), pytest.approx(2.0))
    assert second == Credit(0, 1, pytest.approx(1.0), pytest.approx(2 / 3))


def test_advantages_are_divided_by_their_weighted_mean_size_after_the_balance():
    groups = [[(0.0, 2), (2.0, 2)]]
    config = RLConfig(scale_rewards=False, advantage_balance=0.5)
    # -1 x 0.5 and 1, weights 1: the mean size is 0.75.
    assert [credit.advantage for credit in credit_trajectories(groups, config)] == pytest.approx([-2 / 3, 4 / 3])
    raw = attrs.evolve(config, normalize_advantages=False)
    assert [credit.advantage for credit in credit_trajectories(groups, raw)] == [-0.5, 1.0]


def test_a_trajectory_without_tokens_counts_in_the_mean_and_is_then_dropped():
    (credit,) = credit_trajectories([[(0.0, 0), (3.0, 2)]], RLConfig(scale_rewards=False, normalize_advantages=False))
    assert (credit.member, credit.advantage) == (1, 1.5)


def test_equal_rewards_everywhere_leave_nothing_to_train_on():
    assert credit_trajectories([[(1.0, 5), (1.0, 6)], []], RLConfig()) == []


def test_a_balance_that_silences_everything_left_does_not_divide_by_zero():
    groups = [[(0.0, 2), (1.0, 0)]]
    (credit,) = credit_trajectories(groups, RLConfig(advantage_balance=1.0))
    assert credit.advantage == 0.0


@given(st.lists(st.integers(1, 50)), st.integers(1, 60))
def test_packing_keeps_the_order_and_every_run_is_as_long_as_it_can_be(lengths, capacity):
    runs = packed(lengths, capacity)
    assert [place for run in runs for place in run] == list(range(len(lengths)))
    sizes = [sum(lengths[place] for place in run) for run in runs]
    assert all(size <= capacity or len(run) == 1 for size, run in zip(sizes, runs, strict=True))
    assert all(size + lengths[run.stop] > capacity for size, run in zip(sizes[:-1], runs[:-1], strict=True))


# ---- ratios ------------------------------------------------------------------------------------------------------


def test_the_four_levels_by_hand():
    log_ratios = [math.log(4.0), math.log(1.0)]
    assert importance_ratios(log_ratios, "token") == pytest.approx([4.0, 1.0])
    assert importance_ratios(log_ratios, "sequence") == pytest.approx([2.0, 2.0])
    assert importance_ratios(log_ratios, "average") == pytest.approx([3.0, 1.5])
    assert importance_ratios(log_ratios, "geometric_average") == pytest.approx([math.sqrt(8.0), math.sqrt(2.0)])


@each_case("level", LEVELS)
def test_a_ratio_is_clamped_and_never_overflows(level):
    assert importance_ratios([1e9], level) == pytest.approx([math.exp(20)])
    assert importance_ratios([-1e9], level) == pytest.approx([math.exp(-20)])


@each_case("missing", [None, math.nan])
@each_case("ppo_loss", [False, True])
def test_a_missing_old_logprob_means_ratio_one_and_still_teaches(missing, ppo_loss):
    loss = policy_loss([sequence([-2.0], [missing])], RLConfig(ppo=ppo_loss))
    assert loss.metrics["importance_ratio"] == 1.0
    assert loss.derivatives == ((pytest.approx(-1.0),),)


# ---- surrogates ----------------------------------------------------------------------------------------------------


def test_cispo_by_hand():
    term = cispo(9.0, 2.0, -0.5, RLConfig())
    assert (term.loss, term.by_logprob, term.by_ratio) == (5.0, -10.0, 0.0)
    assert cispo(0.5, 2.0, -1.0, RLConfig(epsilon=0.2)).by_logprob == pytest.approx(-1.6)


@each_case(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.1, 1.0, -1.1, -1.0),
        (1.5, 1.0, -1.2, 0.0),
        (1.5, -1.0, 1.5, 1.0),
        (0.5, 1.0, -0.5, -1.0),
        (0.5, -1.0, 0.8, 0.0),
    ],
)
def test_ppo_by_hand_at_both_edges_and_both_signs(ratio, advantage, loss, slope):
    term = ppo(ratio, advantage, -1.0, RLConfig(ppo=True))
    assert (term.loss, term.by_logprob, term.by_ratio) == (pytest.approx(loss), 0.0, slope)


def test_at_ratio_one_cispo_and_ppo_have_the_same_gradient():
    rows = [sequence([-1.0, -2.0], [-1.0, -2.0], -0.7, 1.5), sequence([-0.5], [-0.5], 1.2, 0.4)]
    assert policy_loss(rows, RLConfig()).derivatives == policy_loss(rows, RLConfig(ppo=True)).derivatives


def test_the_loss_is_weighted_and_averaged_over_trainable_tokens():
    rows = [sequence([-1.0, -3.0], [-1.0, -3.0], 2.0, 0.5), sequence([-2.0], [-2.0], -1.0, 2.0)]
    loss = policy_loss(rows, RLConfig())
    assert loss.value == pytest.approx((0.5 * 2 * 1 + 0.5 * 2 * 3 - 2 * 1 * 2) / 3)
    assert loss.derivatives == ((pytest.approx(-1 / 3),) * 2, (pytest.approx(2 / 3),))
    assert loss.metrics["num_trainable_tokens"] == 3.0


def test_the_cap_holds_for_either_sign_of_the_advantage():
    config = RLConfig(max_negative_advantage_importance_sampling_weight=2.0)
    for advantage in (1.0, -1.0):
        loss = policy_loss([sequence([-1.0], [-1.0 - math.log(3.0)], advantage)], config)
        assert loss.derivatives == ((pytest.approx(-2.0 * advantage),),)


def test_the_mask_silences_ratios_outside_the_range_and_its_edges():
    config = RLConfig(ppo=True, mask_prob_ratio=True)
    gaps = [math.log(1.1), math.log(1.3), math.log(0.9), math.log(0.7)]
    (derivatives,) = policy_loss([sequence(gaps, [0.0] * 4, weight=4.0)], config).derivatives
    assert derivatives == pytest.approx([-1.1, 0.0, -0.9, 0.0])


def test_the_mask_comes_after_the_cap():
    config = RLConfig(ppo=True, mask_prob_ratio=True, max_negative_advantage_importance_sampling_weight=1.1)
    capped = policy_loss([sequence([0.0], [-1.0])], config)
    assert capped.value == pytest.approx(-1.1)


def test_masked_cispo_still_clips_from_below():
    config = RLConfig(mask_prob_ratio=True, epsilon=0.2, epsilon_high=0.2)
    loss = policy_loss([sequence([0.0 - 1.0], [-3.0])], config)
    assert loss.derivatives == ((pytest.approx(-0.8),),)


def test_kimi_k2_takes_the_drift_off_the_advantage():
    loss = policy_loss(
        [sequence([-1.0], [-1.5], advantage=1.0)], RLConfig(kimi_k2_tau=0.4, epsilon_high=0.0, epsilon=0.0)
    )
    assert loss.derivatives == ((pytest.approx(-(1.0 - 0.4 * 0.5)),),)


def test_the_kl_penalty_shifts_advantages_around_the_mean_gap():
    new = [-1.0, -2.0]
    loss = policy_loss([sequence(new, new, 1.0, reference=[-2.0, -2.0])], RLConfig(kl_penalty_coef=0.5))
    # Gaps 1 and 0, mean 0.5: advantages 1 - 0.25 and 1 + 0.25.
    assert loss.derivatives == ((pytest.approx(-0.375), pytest.approx(-0.625)),)
    expected = ((math.exp(-1.0) - 1 + 1) + 0) / 2
    assert loss.metrics["kl_div"] == pytest.approx(expected)


def test_truncated_importance_sampling_weighs_by_recomputed_over_sampled():
    row = sequence([-1.0, -1.0, -1.0], [-1.0, -1.0, -1.0], sampled=[-1.0 - math.log(5.0), -1.0 + math.log(2.0), None])
    (derivatives,) = policy_loss([row], RLConfig(truncated_importance_sampling=2.0)).derivatives
    assert derivatives == pytest.approx([-2.0 / 3, -0.5 / 3, -1.0 / 3])
    assert policy_loss([row], RLConfig()).derivatives == ((pytest.approx(-1 / 3),) * 3,)


def test_a_missing_logprob_counts_as_the_new_one_when_importance_sampling_is_truncated():
    row = sequence([-1.0, -1.0], [-2.0, None], sampled=[None, -1.5])
    (derivatives,) = policy_loss([row], RLConfig(truncated_importance_sampling=3.0, epsilon_high=9.0)).derivatives
    # Old over sampled is exp(-2 - -1) and exp(-1 - -1.5); the ratios new over old are e and 1.
    assert derivatives == pytest.approx([-math.e * math.exp(-1.0) / 2, -math.exp(0.5) / 2])


def test_without_recomputed_logprobs_the_ratio_itself_is_truncated_after_its_cap_and_mask():
    row = sequence([-1.0, -1.0, -1.0], [-1.0 - math.log(5.0), -1.0 + math.log(2.0), None])
    (derivatives,) = policy_loss([row], RLConfig(truncated_importance_sampling=2.0, epsilon_high=9.0)).derivatives
    assert derivatives == pytest.approx([-5.0 * 2.0 / 3, -0.5 * 0.5 / 3, -1.0 / 3])
    capped = RLConfig(
        truncated_importance_sampling=2.0, epsilon_high=9.0, max_negative_advantage_importance_sampling_weight=1.5
    )
    assert policy_loss([row], capped).derivatives[0][0] == pytest.approx(-1.5 * 1.5 / 3)


def test_an_empty_set_is_a_loss_of_zero_with_finite_metrics():
    loss = policy_loss([], RLConfig())
    assert (loss.value, loss.derivatives) == (0.0, ())
    assert all(math.isfinite(value) for value in loss.metrics.values())


# ---- derivatives ---------------------------------------------------------------------------------------------------


def plain_loss(rows, at, config):
    """The policy loss once more, as one plain loop. Whatever is detached is taken from the rows `at`."""
    total = sum(len(row.new) for row in rows)
    all_gaps = [n - r for row in at if row.reference for n, r in zip(row.new, row.reference, strict=True)]
    mean_gap = sum(all_gaps) / total
    value = 0.0
    for row, fixed in zip(rows, at, strict=True):
        live = row if config.ppo else fixed
        logs = [max(-20.0, min(20.0, n - o)) for n, o in zip(live.new, row.old, strict=True)]
        whole = math.exp(sum(logs) / len(logs))
        for place, new in enumerate(row.new):
            r = math.exp(logs[place])
            r = {"token": r, "sequence": whole, "average": (r + whole) / 2, "geometric_average": (r * whole) ** 0.5}[
                config.importance_sampling_level
            ]
            r = min(r, config.max_negative_advantage_importance_sampling_weight or math.inf)
            if config.mask_prob_ratio and not 1 - config.epsilon < r < 1 + config.epsilon_high:
                r = 0.0
            a = row.credit.advantage - (config.kimi_k2_tau or 0.0) * (fixed.new[place] - row.old[place])
            if row.reference:
                a += config.kl_penalty_coef * (mean_gap - (fixed.new[place] - row.reference[place]))
            clipped = min(max(r, 1 - config.epsilon), 1 + config.epsilon_high)
            part = -min(r * a, clipped * a) if config.ppo else -clipped * a * new
            if config.truncated_importance_sampling and row.sampled:
                part *= min(math.exp(row.old[place] - row.sampled[place]), config.truncated_importance_sampling)
            value += part * row.credit.weight / total
    return value


def some_rows(chance, spread):
    rows = []
    for length in (1, 3, 5):
        new = [-chance.uniform(0.1, 4.0) for _ in range(length)]
        old, reference, sampled = ([x + chance.gauss(0, spread) for x in new] for _ in range(3))
        rows.append(
            sequence(new, old, chance.gauss(0, 1), chance.uniform(0.5, 2), reference=reference, sampled=sampled)
        )
    return rows


OPTIONS = [
    {},
    {"max_negative_advantage_importance_sampling_weight": 1.05},
    {"mask_prob_ratio": True},
    {"kimi_k2_tau": 0.3},
    {"kl_penalty_coef": 0.7},
    {"truncated_importance_sampling": 1.1},
]


@each_case("options", OPTIONS, ids=lambda options: next(iter(options), "plain"))
@each_case("ppo_loss", [False, True], ids=["cispo", "ppo"])
@each_case("level", LEVELS)
def test_value_and_derivatives_agree_with_a_plain_loop_and_its_differences(level, ppo_loss, options):
    config = RLConfig(ppo=ppo_loss, importance_sampling_level=level, epsilon=0.2, epsilon_high=0.3, **options)
    for seed in range(4):
        rows = some_rows(random.Random(seed), spread=(0.1, 0.4)[seed % 2])
        loss = policy_loss(rows, config)
        assert loss.value == pytest.approx(plain_loss(rows, rows, config), rel=1e-9)
        for place, row in enumerate(rows):
            for token in range(len(row.new)):
                up, down = (plain_loss(moved(rows, place, token, by), rows, config) for by in (1e-6, -1e-6))
                assert loss.derivatives[place][token] == pytest.approx((up - down) / 2e-6, abs=1e-7)


def moved(rows, place, token, by):
    row = rows[place]
    new = [x + by * (at == token) for at, x in enumerate(row.new)]
    return [*rows[:place], attrs.evolve(row, new=new), *rows[place + 1 :]]


def test_beyond_the_clamp_ppo_has_no_slope():
    loss = policy_loss([sequence([0.0], [-30.0], advantage=-1.0)], RLConfig(ppo=True))
    assert loss.derivatives == ((0.0,),)
    assert loss.value == pytest.approx(math.exp(20))
