import math

import pytest

from each import each_case
from modelyard.domain.training_config import RLConfig, SFTConfig
from modelyard.errors import InvalidInput


def test_the_clip_range_depends_on_the_loss():
    assert (RLConfig().epsilon, RLConfig().epsilon_high) == (1.0, 4.0)
    assert (RLConfig(ppo=True).epsilon, RLConfig(ppo=True).epsilon_high) == (0.2, 0.2)
    assert RLConfig(ppo=True, epsilon=0.3).epsilon_high == 0.3
    assert RLConfig(epsilon=0.3).epsilon_high == 4.0
    assert RLConfig(ppo=True, epsilon=0.2, epsilon_high=0.28).epsilon_high == 0.28


def test_null_and_absent_mean_the_same():
    assert RLConfig.resolve({"epsilon": None, "ppo": None, "loss_fn": None, "kimi_k2_tau": None}) == RLConfig()
    assert SFTConfig.resolve({"learning_rate": None, "batch_size": None}) == SFTConfig()


@pytest.mark.parametrize("given", [{"loss_fn": "ppo"}, {"loss_fn": "ppo", "ppo": True}, {"ppo": True}])
def test_loss_fn_is_another_word_for_ppo(given):
    assert RLConfig.resolve(given) == RLConfig(ppo=True)


@pytest.mark.parametrize(
    "given", [{"loss_fn": "cispo", "ppo": True}, {"loss_fn": "ppo", "ppo": False}, {"loss_fn": "x"}]
)
def test_loss_fn_that_contradicts_or_is_unknown_is_refused_by_name(given):
    with pytest.raises(InvalidInput) as refused:
        RLConfig.resolve(given)
    assert [problem.loc for problem in refused.value.problems] == [("loss_fn",)]


def test_every_field_out_of_bounds_is_named_at_once():
    with pytest.raises(InvalidInput) as refused:
        RLConfig(
            learning_rate=0.0,
            epsilon=-0.1,
            epsilon_high=math.inf,
            importance_sampling_level="word",
            max_negative_advantage_importance_sampling_weight=-1.0,
            kimi_k2_tau=math.nan,
            advantage_balance=1.5,
            truncated_importance_sampling=-1.0,
            kl_penalty_coef=-1.0,
            kl_penalty_reference_step=-1,
            packed_sequence_length=0,
        )
    assert len({problem.loc for problem in refused.value.problems}) == 11


@each_case(
    ("given", "loc"),
    [
        ({"learning_rate": -1.0}, ("learning_rate",)),
        ({"learning_rate": ()}, ("learning_rate",)),
        ({"learning_rate": (1e-5, math.nan)}, ("learning_rate", 1)),
        ({"batch_size": 0}, ("batch_size",)),
        ({"assistant_turns": "first"}, ("assistant_turns",)),
    ],
)
def test_sft_fields_out_of_bounds_are_named(given, loc):
    with pytest.raises(InvalidInput) as refused:
        SFTConfig(**given)
    assert [problem.loc for problem in refused.value.problems] == [loc]


def test_one_rate_serves_every_batch_and_a_list_one_each():
    assert SFTConfig(learning_rate=1e-4, batch_size=2).learning_rates(5) == (1e-4,) * 3
    assert SFTConfig.resolve({"learning_rate": [1e-4, 1e-5]}).learning_rates(3) == (1e-4, 1e-5)
    assert SFTConfig(batch_size="auto").rows_per_batch == 2


def test_a_list_that_does_not_name_a_rate_for_each_batch_is_refused():
    with pytest.raises(InvalidInput, match="3 batches"):
        SFTConfig(learning_rate=(1e-4, 1e-5)).learning_rates(5)
