"""What a row says beside its messages: the weight of an answer, and variables of the chat template."""

import math
from typing import Any

import attrs
import pytest
from training_kit import learner_of, trainer_of

from modelyard.domain.completion import Message, Role
from modelyard.domain.training import Example, Preference
from modelyard.domain.training_config import DPOConfig
from modelyard.errors import InvalidInput
from modelyard.parts.contracts.trainer import context_of, followed
from modelyard.parts.torch.training.options import LocalSFTConfig
from modelyard.trainers.losses import supervised_loss

TINY = "tiny"


def user(text: str) -> Message:
    return Message(Role.USER, text)


def answer(text: str, reasoning: str | None = None) -> Message:
    return Message(Role.ASSISTANT, text, reasoning=reasoning)


TWO = Example((user("one?"), answer("1"), user("and two?"), answer("it is 2")))

# ---- weights ---------------------------------------------------------------------------------------------------------


def first_step(row: Example, **options: Any) -> dict[str, float]:
    config = LocalSFTConfig(learning_rate=1e-3, batch_size=1, **options)
    return dict(followed(trainer_of().train("sft", config, [row], context_of(TINY))).steps[0].metrics)


def test_a_weight_scales_the_losses_of_the_tokens_of_its_message() -> None:
    learner, _ = learner_of({})
    (row,) = learner.sft_turns(attrs.evolve(TWO, weights={1: 0.25}), "all")
    (last,) = learner.sft_turns(attrs.evolve(TWO, untrained=(1,)), "all")
    (scores,) = learner.scores(None, [row])
    later = len(last.logprobs)
    assert list(row.weights) == [0.25] * (len(scores) - later) + [1.0] * later
    expected = -math.fsum(w * one for w, one in zip(row.weights, scores, strict=True)) / len(scores)
    assert first_step(attrs.evolve(TWO, weights={1: 0.25}))["loss"] == pytest.approx(expected, abs=1e-6)


def test_gradients_are_scaled_as_losses_are() -> None:
    whole, quarter = (first_step(attrs.evolve(TWO, weights=weights)) for weights in ({}, {1: 0.25, 3: 0.25}))
    assert quarter["loss"] == pytest.approx(whole["loss"] / 4, rel=1e-5)
    assert quarter["grad_norm"] == pytest.approx(whole["grad_norm"] / 4, rel=1e-4)
    assert quarter["num_trainable_tokens"] == whole["num_trainable_tokens"]


def test_a_cut_row_keeps_the_weights_of_what_is_left() -> None:
    learner, _ = learner_of({})
    (row,) = learner.sft_turns(attrs.evolve(TWO, weights={3: 0.5}), "all")
    learner.read_as(LocalSFTConfig(max_length=row.length - 2, overlong="keep_start"))
    (left,) = learner.sft_turns(attrs.evolve(TWO, weights={3: 0.5}), "all")
    assert list(left.weights) == list(row.weights)[:-2]


@pytest.mark.usefixtures("_warm_ranks")
def test_rows_on_two_ranks_and_in_small_passes_have_their_own_weights() -> None:
    rows = [attrs.evolve(TWO, weights={at: 0.5}) for at in (1, 3)]
    config = LocalSFTConfig(learning_rate=1e-3, batch_size=2)
    runs = [
        followed(trainer_of(**options).train("sft", config, rows, context_of(TINY))).steps[0].metrics
        for options in ({}, {"ranks": 2})
    ]
    assert runs[1]["loss"] == pytest.approx(runs[0]["loss"], abs=1e-6)
    assert runs[1]["grad_norm"] == pytest.approx(runs[0]["grad_norm"], abs=1e-5)


def test_the_loss_of_weighted_rows_by_hand() -> None:
    found = supervised_loss([[-1.0, -2.0], [-4.0]], [[0.5, 0.5], []])
    assert found.value == pytest.approx((0.5 + 1 + 4) / 3)
    assert found.derivatives == ((-0.5 / 3, -0.5 / 3), (-1 / 3,))
    assert supervised_loss([[-1.0, -2.0], [-4.0]]).value == pytest.approx(7 / 3)


# ---- variables of the template ---------------------------------------------------------------------------------------

THINKS = (  # as Qwen 3: thinking is opened and closed by the prompt if it is not wanted; earlier thoughts are left out
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{%- if m.role == 'assistant' and m.reasoning_content and (loop.last or preserve_thinking) %}"
    "{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{%- endif %}"
    "{{ (m.content or '') + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    "{%- endif %}"
)


def written(learner: Any, turn: Any) -> tuple[str, str]:
    """Return the text of the tokens of a row, and of the trained ones."""
    decode = learner._chat.tokenizer.decode
    return decode(list(turn.ids)), decode([turn.ids[place] for place in turn.places])


@pytest.fixture
def learner() -> Any:
    found, _ = learner_of({})
    found._chat.tokenizer.chat_template = THINKS
    return found


def test_a_row_is_rendered_with_its_variables_and_its_answers_stand_behind_the_prompt_that_is_served(
    learner: Any,
) -> None:
    row = Example((user("hi"), answer("yes")))
    for variables, before in (({}, "assistant\n"), ({"enable_thinking": False}, "</think>\n\n")):
        (turn,) = learner.sft_turns(attrs.evolve(row, template=variables), "all")
        assert list(turn.ids[: turn.places[0]]) == learner._chat.prompt((user("hi"),), variables=variables)
        whole, trained = written(learner, turn)
        assert (trained, whole.endswith(f"{before}yes<|im_end|>")) == ("yes<|im_end|>", True)


def test_earlier_thoughts_are_read_if_the_row_says_so(learner: Any) -> None:
    row = Example((user("hi"), answer("yes", "so"), user("on"), answer("no")))
    for variables, count in (({}, 0), ({"preserve_thinking": True}, 1)):
        turns = learner.sft_turns(attrs.evolve(row, template=variables), "last")
        assert written(learner, turns[-1])[0].count("<think>\nso\n</think>") == count


def test_a_variable_that_the_template_does_not_read_is_refused_by_name(learner: Any) -> None:
    row = Example((user("hi"), answer("yes")))
    assert learner.sft_turns(attrs.evolve(row, template={"preserve_thinking": True}), "all")
    for name, says in (("enable_thinkng", "'enable_thinking'"), ("messages", "not a variable")):
        with pytest.raises(InvalidInput, match=says) as caught:
            learner.sft_turns(attrs.evolve(row, template={name: True}), "all")
        assert caught.value.problems[0].loc == ("chat_template_kwargs", name)


def test_answers_of_a_preference_are_rendered_with_its_variables(learner: Any) -> None:
    pair = Preference((user("hi"),), answer("yes"), answer("no"), template={"enable_thinking": False})
    for one in (pair.chosen, pair.rejected):
        (turn,) = learner.sft_turns(pair.answered(one), "last")
        assert "</think>" in written(learner, turn)[0]
    wrong = attrs.evolve(pair, template={"thinking": True})
    with pytest.raises(InvalidInput) as caught:
        followed(trainer_of().train("dpo", DPOConfig(), [pair, wrong][1:], context_of(TINY)))
    assert caught.value.problems[0].loc == ("data", 0, "chat_template_kwargs", "thinking")
