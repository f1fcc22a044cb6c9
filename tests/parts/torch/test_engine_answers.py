"""The engine answers as `generate()` does, no matter what it answers at the same time, and reads nothing twice."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from local_models import END, GREEDY, TOKEN_BYTES, alone, answered, engine_of, passes, prompts, requested
from transformers import AutoModelForCausalLM

from modelyard.domain.completion import FinishReason, Sampling
from modelyard.parts.torch.serving import forward as passes_module
from modelyard.parts.torch.serving.sequence import SequenceState


@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
def test_32_prompts_at_once_are_answered_as_generate_answers_each(
    folders: Callable[..., Path], architecture: str
) -> None:
    folder, asked_for = folders(architecture=architecture), prompts(32)
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    expected = []
    for prompt in asked_for:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=16,
            do_sample=False,
            eos_token_id=END,
            pad_token_id=0,
        )
        expected.append(out[0, len(prompt) :].tolist())
    engine = engine_of(folder, rows=8)
    assert answered(engine, *(requested(prompt, 16) for prompt in asked_for)) == expected


MIXED = [
    GREEDY,
    Sampling(seed=1),
    Sampling(seed=2, temperature=0.7, top_p=0.8),
    Sampling(seed=3, top_k=5),
    Sampling(seed=4, min_p=0.05, frequency_penalty=0.5),
    Sampling(seed=5, repetition_penalty=1.3, presence_penalty=1.0, logit_bias={70: 4.0}),
]


def test_an_answer_does_not_depend_on_concurrent_answers(folder: Path) -> None:
    wanted = [(prompt, MIXED[place % len(MIXED)]) for place, prompt in enumerate(prompts(18, seed=1))]
    alone_found = alone(folder, *(requested(prompt, 10, sampling) for prompt, sampling in wanted))
    for order in (list(range(18)), list(reversed(range(18))), random.Random(7).sample(range(18), 18)):
        found = answered(
            engine_of(folder, rows=5), *(requested(wanted[place][0], 10, wanted[place][1]) for place in order)
        )
        assert found == [alone_found[place] for place in order]


def test_one_who_comes_later_joins_those_who_are_under_way(folder: Path) -> None:
    engine = engine_of(folder)
    early, late = requested([5, 6, 7], 20, Sampling(seed=1)), requested([8, 9], 20, Sampling(seed=2, temperature=0.5))
    engine.submit(early)
    engine.wait(early, 5)
    engine.submit(late)
    engine.wait(early, 8)
    assert 0 < len(late.answer) < 8
    engine.wait(early, 20)
    engine.wait(late, 20)
    assert [early.answer, late.answer] == alone(folder, early, late)


def test_every_token_comes_with_the_log_probability_of_the_whole_model(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    engine = engine_of(folder)
    answers = [requested(prompt, 10, Sampling(seed=place), top_logprobs=3) for place, prompt in enumerate(prompts(6))]
    answered(engine, *answers)
    for answer in answers:
        with torch.no_grad():
            logprobs = model(torch.tensor([answer.prompt + answer.answer])).logits[0].log_softmax(-1)
        for place, sampled in enumerate(answer.sampled, len(answer.prompt) - 1):
            assert abs(float(logprobs[place, sampled.token]) - sampled.logprob) < 1e-4
            best = logprobs[place].topk(3)
            assert [token for token, _ in sampled.top] == best.indices.tolist()
            assert all(abs(a - b) < 1e-4 for (_, a), b in zip(sampled.top, best.values.tolist(), strict=True))


# ---- how answers end ---------------------------------------------------------------------------------------------


def test_an_answer_ends_at_its_limit_also_when_that_is_one_token(folder: Path) -> None:
    long, short = requested([5, 6, 7], 9), requested([5, 6, 7], 1)
    found = answered(engine_of(folder), long, short)
    assert found[1] == found[0][:1]
    assert (long.reason, short.reason) == (FinishReason.LENGTH, FinishReason.LENGTH)


def test_any_of_several_end_tokens_ends_an_answer_and_is_its_last(folder: Path) -> None:
    (whole,) = answered(engine_of(folder), requested([5, 6, 7], 12))
    for end in set(whole[2:]):
        answer = requested([5, 6, 7], 12)
        answered(engine_of(folder, ends=frozenset({END, end})), answer)
        assert answer.answer == whole[: whole.index(end) + 1]
        assert answer.reason is FinishReason.STOP


class Complete:
    """A grammar that nothing can follow after three tokens."""

    def __init__(self) -> None:
        self.taken = 0

    def allowed(self) -> bytes:
        return b"\x01" * 259

    def accept(self, token: int) -> bool:
        self.taken += 1
        return self.taken == 3


@pytest.mark.parametrize(("ends", "tokens"), [(frozenset(), 3), (frozenset({END}), 9)])
def test_where_nothing_can_follow_an_answer_ends_with_its_end_token_if_there_is_one(
    folder: Path, ends: frozenset[int], tokens: int
) -> None:
    answer = requested([5, 6, 7], 9, grammar=Complete())
    answered(engine_of(folder, ends=ends), answer)
    assert len(answer.answer) == tokens
    assert answer.reason is (FinishReason.LENGTH if ends else FinishReason.STOP)


# ---- reading -----------------------------------------------------------------------------------------------------


def test_a_prompt_longer_than_a_pass_is_read_in_parts(
    folders: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folders(context_length=1024)
    wanted = [
        requested(prompt, 4) for prompt in (prompts(1, 3, 700)[0] * 2, prompts(1, 4, 90)[0], prompts(1, 5, 300)[0])
    ]
    expected = alone(folder, *wanted)
    monkeypatch.setattr(passes_module, "PREFILL_TOKENS", 50)
    engine = engine_of(folder)
    with passes(engine) as seen:
        assert answered(engine, *wanted) == expected
    assert max(rows * tokens for rows, tokens in seen) <= 50


def test_prompts_that_share_a_pass_are_read_side_by_side(folder: Path) -> None:
    engine = engine_of(folder)
    with passes(engine) as seen:
        answered(engine, *(requested(prompt, 2) for prompt in prompts(6)))
    assert len(seen) == 2


def test_the_next_turn_of_a_conversation_reads_only_what_is_new(folder: Path) -> None:
    engine, opening = engine_of(folder), prompts(1, 9, 200)[0] + [7] * 50
    (generated,) = answered(engine, requested(opening, 10))
    second = requested([*opening, *generated, 40, 41, 42], 5)
    with passes(engine) as seen:
        answered(engine, second)
    assert sum(tokens for _, tokens in seen) == 1 + 3 + 4  # what was said last, what is new, and four more steps
    assert [second.answer] == alone(folder, second)


def test_the_same_prompt_again_is_read_from_its_last_token(folder: Path) -> None:
    engine, prompt = engine_of(folder), prompts(1, 11, 100)[0]
    first, again = requested(prompt, 4), requested(prompt, 4)
    answered(engine, first)
    with passes(engine) as seen:
        answered(engine, again)
    assert [tokens for _, tokens in seen] == [1, 1, 1, 1]
    assert again.answer == first.answer


def test_choices_of_one_prompt_read_it_once(folder: Path) -> None:
    engine, prompt = engine_of(folder), [*range(10, 90)]
    choices = [requested(prompt, 3, Sampling(seed=seed)) for seed in range(6)]
    with passes(engine) as seen:
        answered(engine, *choices)
    assert seen[:3] == [(1, len(prompt)), (5, 1), (6, 1)]  # one reads it, the others its last token, all continue
    assert [choice.answer for choice in choices] == alone(folder, *choices)


def test_choices_of_several_prompts_read_each_once_and_side_by_side(folder: Path) -> None:
    """Also where the prompts begin alike, as with one system message, which is read once then, too."""
    shared, ends = [*range(10, 60)], [[100] * 5, [110, 120] * 4, [130] * 3]
    choices = [requested([*shared, *end], 3, Sampling(seed=seed)) for end in ends for seed in range(4)]
    engine = engine_of(folder)
    with passes(engine) as seen:
        answered(engine, *choices)
    assert seen[:4] == [(1, 55), (5, 8), (6, 1), (12, 1)]
    assert [choice.answer for choice in choices] == alone(folder, *choices)


def test_what_has_much_to_read_does_not_wait_for_padding_of_what_has_little(
    folders: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four that know all but a token, and one that knows nothing: no pass is wider than what is read."""
    monkeypatch.setattr(passes_module, "PREFILL_TOKENS", 128)
    folder, known = folders(), [*range(10, 40)]
    engine = engine_of(folder)
    answered(engine, requested(known, 2))
    wanted = [*(requested([*known, place], 3) for place in range(50, 54)), requested([*range(100, 200)], 3)]
    with passes(engine) as seen:
        answered(engine, *wanted)
    assert seen[:3] == [(4, 1), (1, 100), (5, 1)]
    assert [one.answer for one in wanted] == alone(folder, *wanted)


def test_rows_may_change_their_slots_and_lengths_without_effect(folder: Path) -> None:
    """Answers of many lengths come and go while rows grow, shrink and move."""
    drawn = random.Random(3)
    given = prompts(16, seed=5)
    given[8] = given[15] = [9, 10] * 200
    wanted = [
        requested(prompt, drawn.choice([1, 3, 9, 20]), Sampling(seed=place)) for place, prompt in enumerate(given)
    ]
    engine = engine_of(folder, rows=6, memory=TOKEN_BYTES * 256 * 7)
    lengths, found = [engine.rows.cache.length], []
    for part in (wanted[:7], wanted[7:9], wanted[9:15], wanted[15:]):
        found += answered(engine, *part)
        lengths.append(engine.rows.cache.length)
    assert found == alone(folder, *wanted)
    assert lengths == [256, 256, 512, 256, 512]


def test_an_answer_that_was_kept_is_found_again_in_longer_rows(folder: Path) -> None:
    engine, opening = engine_of(folder), prompts(1, 13, 60)[0]
    answered(engine, requested(opening, 5))
    longer = requested([*opening, *range(10, 250)], 40)
    answered(engine, longer)
    again = requested(longer.prompt, 40)
    answered(engine, again)
    assert [longer.answer, again.answer] == alone(folder, longer, again)


def test_nothing_is_left_running_when_all_have_their_answers(folder: Path) -> None:
    engine = engine_of(folder)
    answers = [requested(prompt, 3) for prompt in prompts(5)]
    answered(engine, *answers)
    assert engine.rows.running == []
    assert {answer.state for answer in answers} == {SequenceState.ENDED}
