"""Names that people type: of models in a completion, and of options."""

from collections.abc import Iterator

import pytest

from modelyard import Message, Platform, Role, Trajectory, TrajectoryGroup, open_platform
from modelyard.errors import Forbidden, ModelNotFound

ROW = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
ASK = {"messages": "a", "temperature": 0, "max_tokens": 4}


@pytest.fixture
def yard() -> Iterator[Platform]:
    with open_platform(project="desk") as platform:
        model = platform.models.create("support", base_model="tabular-mini")
        platform.training.sft(model, [ROW] * 4).result()
        yield platform


def test_a_completion_takes_a_model_a_checkpoint_and_names_with_and_without_the_entity(yard: Platform) -> None:
    model = yard.models.get("desk/support")
    first, last = yard.models.checkpoints(model)
    answers = [
        yard.chat.complete(model=given, seed=1, **ASK).text
        for given in (model, last, "desk/support", "desk/support:step1", "local/desk/support", "desk/support:latest")
    ]
    assert len(set(answers)) == 1
    answered = [total.model for total in yard.usage.total(by=("model",)) if total.completion_tokens]
    assert answered == ["local/desk/support"]
    base = yard.chat.complete(model="tabular-mini", seed=1, **ASK).text
    assert yard.chat.complete(model=first, seed=1, **ASK).text == base


def test_a_value_whose_model_is_gone_is_not_found(yard: Platform) -> None:
    model = yard.models.get("desk/support")
    yard.models.delete(model)
    with pytest.raises(ModelNotFound):
        yard.chat.complete(model=model, **ASK)


@pytest.mark.parametrize(
    ("requested", "near"),
    [("desk/suport", "desk/support"), ("local/desk/suport", "local/desk/support"), ("tabular-min", "tabular-mini")],
)
def test_a_name_that_is_not_there_hints_at_what_is_near(yard: Platform, requested: str, near: str) -> None:
    with pytest.raises(ModelNotFound, match=f"did you mean .*{near!r}"):
        yard.chat.complete(model=requested, **ASK)


def test_a_hint_names_only_what_the_caller_may_see(yard: Platform) -> None:
    secret = yard.keys.create(projects=["other"]).secret
    tenant = yard.acting_as(yard.keys.authenticate(secret))
    with pytest.raises(ModelNotFound) as missing:
        tenant.chat.complete(model="other/support", **ASK)
    assert "desk" not in str(missing.value)
    with pytest.raises(Forbidden) as refused:
        tenant.chat.complete(model="desk/suport", **ASK)
    assert "support" not in str(refused.value)


def test_a_misspelt_option_of_rl_names_the_nearest(yard: Platform) -> None:
    with pytest.raises(TypeError, match="no option 'learning_rat'; did you mean 'learning_rate'"):
        yard.training.rl("desk/support", [], learning_rat=1)  # type: ignore[call-arg]


def test_a_trajectory_is_made_of_one_sampled_answer(yard: Platform) -> None:
    answer = yard.chat.complete(model="desk/support", n=2, logprobs=True, return_token_ids=True, **ASK)
    rewards = range(len(answer.choices))
    group = TrajectoryGroup(
        tuple(
            Trajectory.of([Message(Role.USER, "a")], choice, reward=float(reward))
            for choice, reward in zip(answer.choices, rewards, strict=True)
        )
    )
    assert yard.training.rl("desk/support", [group]).result().step == 2
