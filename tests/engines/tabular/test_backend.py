"""Serving the tabular model: real probabilities, whole characters, adapters loaded once."""

import io
import math
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard.backends.sampling import next_token
from modelyard.domain.catalogue import SamplingParameter
from modelyard.domain.completion import (
    Choice,
    CompletionRequest,
    FinishReason,
    Message,
    Role,
    Sampling,
    Tool,
    ToolCall,
)
from modelyard.domain.models import Checkpoint
from modelyard.engines.tabular import backend as tabular
from modelyard.engines.tabular.adapter_file import ADAPTER_FILE, write_adapter
from modelyard.engines.tabular.backend import TabularBackend
from modelyard.engines.tabular.base import base_seed, conversation
from modelyard.engines.tabular.model import Adapter, TabularModel, prompt_features, prompt_ids
from modelyard.engines.tabular.tokenizer import END_OF_TURN, VOCABULARY_SIZE, encode
from modelyard.errors import BackendError, InvalidInput
from modelyard.platform.chat.assembly import fold_choice
from modelyard.protocols import ServedModel

BACKEND = TabularBackend(("tabular-mini", "tabular-other"))
BASE = ServedModel("tabular-mini", BACKEND.entries()[0])
QUESTION = (Message(Role.USER, "How do I change my address?"),)
DETAIL = {"logprobs": True, "top_logprobs": 5, "return_token_ids": True}


def request(**fields: Any) -> CompletionRequest:
    return attrs.evolve(CompletionRequest("any", QUESTION, sampling=Sampling(seed=1), max_tokens=40), **fields)


def ask(model: ServedModel = BASE, backend: TabularBackend = BACKEND, **fields: Any) -> Choice:
    return fold_choice(0, backend.stream(request(**fields), model), with_logprobs=True)


def towards(*answers: str) -> Adapter:
    """An adapter that makes these answers very likely: each token by the three tokens before it."""
    rows: dict[int, dict[int, float]] = {}
    for answer in answers:
        ids = [END_OF_TURN] * 3 + list(answer.encode()) + [END_OF_TURN]
        for at in range(3, len(ids)):
            feature = 5 << 45 | ids[at - 1] << 18 | ids[at - 2] << 9 | ids[at - 3]
            rows.setdefault(feature, {})[ids[at]] = 40.0
    return Adapter(rows)


def checkpoint(number: int, adapter: Adapter, opened: list[int] | None = None) -> ServedModel:
    """A checkpoint of the first base model that holds the adapter; `opened` notes each time that its file is opened."""
    data = b"".join(write_adapter(adapter))

    def open_file(name: str) -> io.BytesIO:
        assert name == ADAPTER_FILE
        if opened is not None:
            opened.append(number)
        return io.BytesIO(data)

    kept = Checkpoint(str(number), "m", "e", "p", 1, datetime(2026, 1, 1, tzinfo=UTC), "d", files={ADAPTER_FILE: {}})
    return ServedModel("tabular-mini", BASE.entry, kept, open_file)


# ---- probabilities -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sampling", [Sampling(seed=3), Sampling(seed=3, temperature=0.5, top_k=5, frequency_penalty=1.0)]
)
def test_logprobs_are_the_model_s_own_before_any_sampling_parameter(sampling: Sampling) -> None:
    generated = ask(sampling=sampling, **DETAIL)
    assert generated.logprobs is not None
    model = TabularModel(base_seed("tabular-mini"))
    expected = model.score(prompt_features(QUESTION), generated.token_ids)
    assert [token.logprob for token in generated.logprobs] == pytest.approx(expected)
    assert generated.prompt_token_ids == tuple(prompt_ids(QUESTION))


def test_alternatives_are_the_likeliest_tokens_of_the_whole_vocabulary() -> None:
    generated = ask(max_tokens=1, logprobs=True, top_logprobs=20)
    assert generated.logprobs is not None
    scorer = TabularModel(base_seed("tabular-mini")).scorer(prompt_features(QUESTION))
    every = sorted(scorer.next_logprobs([]), reverse=True)
    assert len(every) == VOCABULARY_SIZE
    assert math.fsum(map(math.exp, every)) == pytest.approx(1)
    assert [token.logprob for token in generated.logprobs[0].top] == pytest.approx(every[:20])


def test_temperature_0_takes_the_first_alternative_each_time() -> None:
    generated = ask(sampling=Sampling(temperature=0), **DETAIL)
    assert generated.logprobs is not None
    assert [token.id for token in generated.logprobs] == [token.top[0].id for token in generated.logprobs]


@pytest.mark.parametrize("penalty", [1.0, 1.5])
def test_an_answer_is_what_the_log_probabilities_and_the_parameters_say(penalty: float) -> None:
    sampling = Sampling(seed=4, temperature=0.8, presence_penalty=0.5, repetition_penalty=penalty)
    generated = ask(sampling=sampling, **DETAIL).token_ids
    scorer = TabularModel(base_seed("tabular-mini")).scorer(prompt_features(QUESTION))
    for place, token in enumerate(generated):
        before = generated[:place]
        assert next_token(scorer.next_logprobs(before), sampling, prompt_ids(QUESTION), before) == token


def test_seeds_base_models_and_prompts_each_make_a_difference() -> None:
    other = ServedModel("tabular-other", BACKEND.entries()[1])
    answers = [
        ask().message.text,
        ask(sampling=Sampling(seed=2)).message.text,
        ask(other).message.text,
        ask(checkpoint(1, towards("no"))).message.text,
    ]
    assert len(set(answers)) == 4
    assert ask().message.text == answers[0]


def test_a_bias_makes_it_stop_and_an_unknown_id_is_refused_with_the_first_delta() -> None:
    stopped = ask(sampling=Sampling(logit_bias={END_OF_TURN: 100}), **DETAIL)
    assert (stopped.message.text, stopped.finish_reason, stopped.token_ids) == ("", FinishReason.STOP, (END_OF_TURN,))
    assert stopped.logprobs is not None
    assert (stopped.logprobs[0].token, stopped.logprobs[0].bytes) == ("", ())
    stream = BACKEND.stream(request(sampling=Sampling(logit_bias={VOCABULARY_SIZE: 1})), BASE)
    with pytest.raises(InvalidInput, match="logit_bias"):
        next(stream)


def test_without_a_limit_of_the_request_the_entry_s_holds() -> None:
    short = attrs.evolve(BASE, entry=attrs.evolve(BASE.entry, max_output_length=3))
    generated = ask(short, max_tokens=None, sampling=Sampling(logit_bias={END_OF_TURN: -100}), **DETAIL)
    assert (len(generated.token_ids), generated.finish_reason) == (3, FinishReason.LENGTH)


# ---- text ----------------------------------------------------------------------------------------------------------


@examples(20)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6), st.integers(1, 12))
def test_characters_come_whole_and_their_bytes_exactly(text: str, limit: int) -> None:
    backend, model = TabularBackend(), checkpoint(1, towards(text))
    greedy = {"sampling": Sampling(temperature=0), "max_tokens": limit, **DETAIL}
    deltas = list(backend.stream(request(streamed=True, **greedy), model))
    generated = fold_choice(0, deltas, with_logprobs=True)
    assert generated == ask(model, backend, **greedy)
    assert generated.logprobs is not None
    whole = b"".join(bytes(token.bytes or ()) for token in generated.logprobs)
    assert generated.message.text == whole.decode(errors="replace")
    for delta in deltas[:-1]:
        assert "\ufffd" not in delta.text or "\ufffd" in text


def test_a_character_is_held_back_until_its_last_byte() -> None:
    model = checkpoint(2, towards("é🌊"))
    deltas = list(BACKEND.stream(request(streamed=True, sampling=Sampling(temperature=0)), model))
    assert [delta.text for delta in deltas] == ["", "é", "", "", "", "🌊", ""]
    assert [delta.tokens for delta in deltas] == [1] * 7
    cut = list(BACKEND.stream(request(streamed=True, sampling=Sampling(temperature=0), max_tokens=4), model))
    assert "".join(delta.text for delta in cut) == "é\ufffd"


def test_without_streaming_a_piece_has_64_tokens() -> None:
    endless = Sampling(seed=1, logit_bias={END_OF_TURN: -100})
    deltas = list(BACKEND.stream(request(sampling=endless, max_tokens=130), BASE))
    assert [delta.tokens for delta in deltas] == [64, 64, 2]


def test_text_that_is_not_unicode_is_refused() -> None:
    broken = request(messages=(Message(Role.USER, "\ud800"),))
    with pytest.raises(InvalidInput, match="lone surrogate"):
        BACKEND.prompt_tokens(broken, BASE)
    with pytest.raises(InvalidInput, match="lone surrogate"):
        next(BACKEND.stream(broken, BASE))


# ---- the prompt ----------------------------------------------------------------------------------------------------


def test_tools_and_calls_are_part_of_the_prompt() -> None:
    tool, call = Tool("look_up", "looks things up"), ToolCall("call_1", "look_up", '{"a": 1}')
    history = (
        *QUESTION,
        Message(Role.ASSISTANT, tool_calls=(call,)),
        Message(Role.TOOL, "found", tool_call_id="call_1"),
    )
    read = conversation(history, (tool,))
    assert [message.text for message in read] == [
        "tools: look_up looks things up",
        QUESTION[0].text,
        'look_up {"a": 1}',
        "found",
    ]
    requested = request(messages=history, tools=(tool,), return_token_ids=True)
    assert BACKEND.prompt_tokens(requested, BASE) == len(prompt_ids(read))
    assert next(BACKEND.stream(requested, BASE)).prompt_token_ids == tuple(prompt_ids(read))
    assert conversation(QUESTION) == QUESTION


# ---- checkpoints ---------------------------------------------------------------------------------------------------


def test_a_checkpoint_answers_by_its_adapter_and_one_without_files_as_the_base() -> None:
    assert ask(checkpoint(3, towards("yes!")), sampling=Sampling(temperature=0)).message.text == "yes!"
    empty = checkpoint(4, Adapter())
    assert empty.checkpoint is not None
    untouched = attrs.evolve(empty, checkpoint=attrs.evolve(empty.checkpoint, files={}))
    assert ask(untouched) == ask()


def test_adapters_stay_loaded_until_others_were_used_more_lately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tabular, "MAX_ADAPTERS", 2)
    opened: list[int] = []
    backend = TabularBackend()
    models = {number: checkpoint(number, towards(str(number)), opened) for number in (1, 2, 3)}
    for number in (1, 2, 1, 3, 1, 2):
        assert ask(models[number], backend, sampling=Sampling(temperature=0)).message.text == str(number)
    assert opened == [1, 2, 3, 2]


def test_many_threads_may_load_at_once() -> None:
    backend = TabularBackend()
    models = [checkpoint(number, towards(f"n{number}")) for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        generated = list(threads.map(lambda model: ask(model, backend, sampling=Sampling(temperature=0)), models * 2))
    assert [answer.message.text for answer in generated] == [f"n{number}" for number in range(8)] * 2


def test_a_file_that_is_not_an_adapter_is_a_clear_error() -> None:
    broken = attrs.evolve(checkpoint(5, Adapter()), open_file=lambda name: io.BytesIO(b"\x08\0\0\0\0\0\0\0nonsense"))
    with pytest.raises(BackendError, match=r"adapter\.safetensors holds no adapter"):
        ask(broken)


# ---- the catalogue ---------------------------------------------------------------------------------------------------


def test_its_entry_lists_every_sampling_parameter_and_a_price_but_no_tools_as_it_calls_none() -> None:
    entry = BACKEND.entries()[0]
    assert set(entry.supported_sampling_parameters) == set(SamplingParameter)
    assert entry.supported_features == ()
    assert 0 < entry.pricing.prompt < entry.pricing.completion
    assert (entry.hub_id, entry.name) == ("modelyard/tabular-mini", "Tabular Mini")
    assert BACKEND.capabilities("tabular-mini").trainable


def test_every_prompt_has_its_own_count_of_tokens() -> None:
    assert BACKEND.prompt_tokens(request(), BASE) == len(prompt_ids(QUESTION)) > len(encode(QUESTION[0].text))


# ---- where an answer ends ----------------------------------------------------------------------------------------


def sampled(**sampling: Any) -> tuple[tuple[int, ...], FinishReason]:
    generated = ask(
        checkpoint(1, towards("Yes.")), max_tokens=60, return_token_ids=True, sampling=Sampling(seed=3, **sampling)
    )
    return generated.token_ids, generated.finish_reason


def test_an_answer_has_at_least_min_tokens() -> None:
    ids, reason = sampled()
    assert reason is FinishReason.STOP
    longer, _ = sampled(min_tokens=len(ids) + 5)
    assert len(longer) >= len(ids) + 5
    assert END_OF_TURN not in longer[: len(ids) + 5]


def test_an_end_of_turn_that_is_ignored_does_not_end_the_answer() -> None:
    ids, _ = sampled()
    longer, reason = sampled(ignore_eos=True)
    assert longer[: len(ids)] == ids
    assert (len(longer), reason) == (60, FinishReason.LENGTH)


def test_an_answer_ends_at_a_stop_token() -> None:
    ids, _ = sampled()
    cut, reason = sampled(stop_token_ids=(ids[1],))
    assert (cut, reason) == (ids[: ids.index(ids[1]) + 1], FinishReason.STOP)
    with pytest.raises(InvalidInput, match="stop_token_ids: 99999 is not a token id of this model"):
        sampled(stop_token_ids=(99_999,))


def test_who_says_something_is_read_and_an_answer_is_its_text_alone() -> None:
    named = [Message(role, "hi", name="ada") for role in (Role.USER, Role.SYSTEM, Role.ASSISTANT)]
    assert [message.text for message in conversation(named)] == ["ada: hi", "ada: hi", "hi"]
