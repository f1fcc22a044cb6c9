"""Drawing tokens: each parameter does what its name says, and nothing else takes part."""

import math
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from each import each_case
from modelyard.backends.sampling import (
    check_token_ids,
    draw,
    drawn,
    is_plain,
    kept,
    most_likely,
    next_token,
    penalised,
    softened,
    uniform,
)
from modelyard.domain.completion import Sampling
from modelyard.errors import InvalidInput

logits = st.lists(st.floats(-20, 0), min_size=2, max_size=12)
seeds = st.integers(-(2**63), 2**63 - 1)


def logprobs_of(values: list[float]) -> list[float]:
    total = math.log(math.fsum(map(math.exp, values)))
    return [value - total for value in values]


@given(logits, seeds)
def test_temperature_0_takes_the_likeliest_token_for_any_seed_and_filters(values: list[float], seed: int) -> None:
    greedy = Sampling(temperature=0, seed=seed, top_k=1, top_p=0.1, min_p=0.9)
    assert next_token(values, greedy, (), ()) == values.index(max(values))


@given(logits, st.integers(1, 12), seeds)
def test_top_k_draws_among_the_k_likeliest(values: list[float], top_k: int, seed: int) -> None:
    token = next_token(values, Sampling(top_k=top_k, seed=seed), (), ())
    assert token in most_likely(softened(values, 1.0), top_k)


@given(logits, st.floats(0.01, 1), seeds)
def test_top_p_draws_from_the_smallest_set_that_holds_p(values: list[float], top_p: float, seed: int) -> None:
    weights = softened(values, 1.0)
    tokens = kept(weights, Sampling(top_p=top_p))
    whole, share = math.fsum(weights), math.fsum(weights[token] for token in tokens)
    least = min(tokens, key=lambda token: (weights[token], -token))
    assert share >= top_p * whole * (1 - 1e-9)
    assert len(tokens) == 1 or share - weights[least] < top_p * whole * (1 + 1e-9) or top_p == 1
    assert next_token(values, Sampling(top_p=top_p, seed=seed), (), ()) in tokens


@given(logits, st.floats(0.01, 1), seeds)
def test_min_p_keeps_what_is_likely_enough_relative_to_the_likeliest(
    values: list[float], min_p: float, seed: int
) -> None:
    weights = softened(values, 1.0)
    tokens = kept(weights, Sampling(min_p=min_p))
    assert list(tokens) == [token for token, weight in enumerate(weights) if weight >= min_p * max(weights)]
    assert next_token(values, Sampling(min_p=min_p, seed=seed), (), ()) in tokens


def test_filters_apply_one_after_the_other() -> None:
    weights = [0.4, 0.3, 0.2, 0.1]
    assert list(kept(weights, Sampling(top_k=3, top_p=0.7))) == [0, 1]  # 0.4 + 0.3 is more than 0.7 of 0.9
    assert list(kept(weights, Sampling(top_k=3, min_p=0.6))) == [0, 1]
    assert list(kept(weights, Sampling(top_k=0))) == list(kept(weights, Sampling(top_k=-1))) == [0, 1, 2, 3]


@given(logits, seeds, st.sampled_from([{}, {"top_k": 2}, {"top_p": 0.7}, {"min_p": 0.1}]))
def test_plain_sampling_may_draw_from_the_weights_at_hand(
    values: list[float], seed: int, filters: dict[str, Any]
) -> None:
    sampling = Sampling(seed=seed, **filters)
    assert is_plain(sampling)
    weights = list(map(math.exp, values))
    chance = uniform(seed, 0) * math.fsum(weights[token] for token in kept(weights, sampling))
    borders = [
        math.fsum(weights[token] for token in kept(weights, sampling) if token <= at) for at in range(len(values))
    ]
    assume(all(abs(chance - border) > 1e-9 for border in borders))
    assert drawn(weights, sampling, 0) == next_token(values, sampling, (), ())


@each_case(
    "changed",
    [
        {"temperature": 0},
        {"temperature": 0.9},
        {"frequency_penalty": 0.1},
        {"presence_penalty": -0.1},
        {"repetition_penalty": 1.1},
        {"logit_bias": {1: 1.0}},
    ],
)
def test_a_configuration_that_changes_the_weights_is_not_plain(changed: dict[str, Any]) -> None:
    assert not is_plain(Sampling(**changed))


def test_equal_tokens_are_kept_by_the_lower_id() -> None:
    assert list(kept([0.25] * 4, Sampling(top_k=2))) == [0, 1]
    assert next_token([-1.0] * 4, Sampling(temperature=0), (), ()) == 0


def test_a_low_temperature_sharpens_and_a_high_one_flattens() -> None:
    def share(temperature: float) -> float:
        weights = softened([-1.0, -2.0], temperature)
        return weights[0] / math.fsum(weights)

    assert share(0.1) > share(1.0) > share(2.0) > 0.5
    assert share(1.0) == pytest.approx(1 / (1 + math.exp(-1)))
    assert share(5e-324) == 1


def test_frequency_counts_and_presence_does_not() -> None:
    scores = [-1.0, -1.0, -1.0]
    assert penalised(scores, Sampling(frequency_penalty=0.5), (), (0, 0, 1)) == [-2.0, -1.5, -1.0]
    assert penalised(scores, Sampling(presence_penalty=0.5), (), (0, 0, 1)) == [-1.5, -1.5, -1.0]
    assert penalised(scores, Sampling(presence_penalty=-2), (2,), (0,)) == [1.0, -1.0, -1.0]


def test_repetition_makes_prompt_and_answer_less_likely_and_bias_adds() -> None:
    scores = [-1.0, -1.0, -1.0]
    assert penalised(scores, Sampling(repetition_penalty=2), (2,), (0,)) == [-2.0, -1.0, -2.0]
    assert penalised(scores, Sampling(logit_bias={1: 3.5}), (), ()) == [-1.0, 2.5, -1.0]
    assert scores == [-1.0, -1.0, -1.0]


@given(logits, st.data())
def test_a_bias_of_100_decides_and_one_of_minus_100_forbids(values: list[float], data: st.DataObject) -> None:
    token = data.draw(st.integers(0, len(values) - 1))
    seed = data.draw(seeds)
    assert next_token(values, Sampling(seed=seed, logit_bias={token: 100}), (), ()) == token
    assert next_token(values, Sampling(seed=seed, logit_bias={token: -100}), (), ()) != token


def test_a_bias_for_no_token_is_refused() -> None:
    check_token_ids(Sampling(logit_bias={0: 1, 9: 1}), 10)
    for token in (-1, 10):
        with pytest.raises(InvalidInput, match=f"logit_bias: {token} is not a token id"):
            check_token_ids(Sampling(logit_bias={token: 1.0}), 10)


@given(seeds, st.integers(0, 10**6))
def test_chance_is_decided_by_seed_and_place(seed: int, place: int) -> None:
    assert 0 <= uniform(seed, place) < 1
    assert uniform(seed, place) == uniform(seed, place)
    assert uniform(seed, place) != uniform(seed + 1, place)
    assert uniform(seed, place) != uniform(seed, place + 1)


def test_chance_is_the_same_in_every_release() -> None:
    assert [round(uniform(7, place), 6) for place in range(3)] == [0.865808, 0.301062, 0.065436]


def test_chance_is_even() -> None:
    drawn = [uniform(1, place) for place in range(4000)]
    tenths = [sum(tenth / 10 <= chance < (tenth + 1) / 10 for chance in drawn) for tenth in range(10)]
    assert max(abs(count - 400) for count in tenths) < 90  # more than 4 standard deviations


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9), st.floats(0, 1, exclude_max=True))
def test_a_draw_follows_the_running_sum_and_never_takes_the_impossible(weights: list[float], chance: float) -> None:
    assume(sum(weights) > 0)
    token = draw(weights, range(len(weights)), chance)
    assert weights[token] > 0
    assert sum(weights[:token]) <= chance * sum(weights) * (1 + 1e-12) + 1e-300


def test_a_draw_at_the_edges_takes_a_token_that_is_possible() -> None:
    assert draw([0.0, 1.0], range(2), 0.0) == 1
    assert draw([1.0, 0.0], range(2), 1 - 2**-53) == 0
    assert draw([1.0, 1.0], range(2), 0.5) == 1


def test_draws_come_as_often_as_they_should() -> None:
    values = logprobs_of([-0.5, -1.5, -3.0])
    counts = [0, 0, 0]
    for seed in range(3000):
        counts[next_token(values, Sampling(seed=seed), (), ())] += 1
    for count, value in zip(counts, values, strict=True):
        expected = 3000 * math.exp(value)
        assert abs(count - expected) < 5 * math.sqrt(expected)
