"""What a local model writes between the marks of reasoning is reasoning, with its tokens; the rest is its answer."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_kit import micro

from modelyard import open_platform
from modelyard.domain.completion import CompletionRequest, Delta, FinishReason, Message, Role
from modelyard.errors import BackendError
from modelyard.parts.torch.reasoning import ReasoningReader
from modelyard.parts.torch.serving.sequence import MAX_UNREAD, ChoiceStream, SampledToken, Sequence, SequenceState

BYTES = [bytes([n]) for n in range(256)]
WRITTEN = "<think>\nTwo and two.\n</think>\n\n4 é"
QWEN = (
    "{%- for message in messages %}"
    "{%- if message.role == 'assistant' %}<|im_start|>assistant\n{% generation %}"
    "{%- if message.reasoning_content %}<think>\n{{ message.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ message.content }}<|im_end|>{% endgeneration %}"
    "{%- else %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A template that writes reasoning as Qwen3's does."""


def sequence_of(text: str, end: FinishReason | None = FinishReason.STOP) -> Sequence:
    """A sequence that sampled these bytes, and an end that shows nothing."""
    sequence = Sequence([1, 2], CompletionRequest("m", ()).sampling, 999)
    sequence.sampled += [SampledToken(byte, -0.5) for byte in text.encode()]
    if end is not None:
        sequence.sampled.append(SampledToken(0, -0.25, reason=end))
    return sequence


def deltas_of(sequence: Sequence, *, opened: bool = False, streamed: bool = False) -> list[Delta]:
    """All deltas of an ended sequence, whose token 0 has no bytes."""
    request = CompletionRequest(
        "m", (Message(Role.USER, "x"),), streamed=streamed, logprobs=True, return_token_ids=True
    )
    sequence.state = SequenceState.ENDED
    stream = ChoiceStream(0, sequence, request, [b"", *BYTES[1:]], reasoning=ReasoningReader(opened))
    return list(stream.deltas())


@pytest.mark.parametrize("streamed", [True, False])
def test_reasoning_and_content_come_apart_with_their_tokens(streamed: bool) -> None:
    deltas = deltas_of(sequence_of(WRITTEN), streamed=streamed)
    assert "".join(delta.reasoning for delta in deltas) == "Two and two."
    assert "".join(delta.text for delta in deltas) == "4 é"
    marks_and_reasoning = len("<think>\nTwo and two.\n</think>\n\n")
    assert sum(delta.tokens for delta in deltas if delta.reasoning) == marks_and_reasoning
    assert len(deltas) == (len("Two and two.") + len("4 é".encode()) + 1 if streamed else 2)


TEXTS = st.lists(st.sampled_from(["<think>", "</think>", "\n", "a", "é", "</t"]), max_size=120).map("".join)


@given(text=TEXTS, opened=st.booleans())
def test_each_token_is_shown_once_in_order(text: str, opened: bool) -> None:
    shown = [deltas_of(sequence_of(text), opened=opened, streamed=streamed) for streamed in (True, False)]
    for deltas in shown:
        ids = [token for delta in deltas for token in delta.token_ids]
        assert ids == [*text.encode(), 0]
        assert all(delta.tokens == len(delta.logprobs) == len(delta.token_ids) for delta in deltas)
        assert [delta.prompt_token_ids for delta in deltas if delta.prompt_token_ids] == [(1, 2)]
        assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + [FinishReason.STOP]
    one, other = shown
    assert "".join(delta.reasoning for delta in one) == "".join(delta.reasoning for delta in other)
    assert "".join(delta.text for delta in one) == "".join(delta.text for delta in other)


def test_tokens_that_show_nothing_are_counted_when_an_answer_fails_or_goes_on_and_on() -> None:
    sequence = sequence_of("<thi", None)
    sequence.failure = BackendError("broken")
    request = CompletionRequest("m", (Message(Role.USER, "x"),), streamed=True)
    stream = ChoiceStream(0, sequence, request, BYTES, reasoning=ReasoningReader(opened=False))
    sequence.state = SequenceState.ENDED
    deltas = stream.deltas()
    assert next(deltas).tokens == len("<thi")
    with pytest.raises(BackendError, match="broken"):
        next(deltas)
    sequence = sequence_of("\n" * (MAX_UNREAD + 5), None)
    stream = ChoiceStream(0, sequence, request, BYTES, reasoning=ReasoningReader(opened=True))
    assert [delta.tokens for delta in stream.deltas()] == [MAX_UNREAD]


# ---- served ------------------------------------------------------------------------------------------------------


def test_an_answer_to_a_prompt_that_opens_the_reasoning_begins_with_it(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "r1")
    template = copy / "chat_template.jinja"
    template.write_text(template.read_text() + "{# </think> #}{% if add_generation_prompt %}<think>\n{% endif %}")
    with open_platform() as platform:
        platform.add_base_model(copy, id="r1")
        answer = platform.chat.complete(model="r1", messages="hello", max_tokens=5, seed=1)
        assert answer.text == ""
        assert answer.choices[0].message.reasoning
        assert answer.usage.reasoning_tokens == answer.usage.completion_tokens == 5
        assert "reasoning" in platform.catalogue.get("r1").supported_features
        schema = {"type": "json_object"}
        assert platform.compat.completions.complete(model="r1", prompt="hello", max_tokens=5, seed=1).text
        pytest.importorskip("llguidance")
        forced = platform.chat.complete(model="r1", messages="hi", max_tokens=20, seed=1, response_format=schema)
        assert forced.text.startswith("{")


def test_a_model_that_is_taught_to_reason_reasons(tmp_path: Path) -> None:
    copy = shutil.copytree(micro(), tmp_path / "qwen")
    (copy / "chat_template.jinja").write_text(QWEN)
    generated = {"role": "assistant", "reasoning_content": "2+2", "content": "4"}
    rows = [{"messages": [{"role": "user", "content": "sum"}, generated]}]
    with open_platform() as platform:
        platform.add_base_model(copy, id="base")
        model = platform.models.create("m", project="p", base_model="base")
        platform.training.sft(model, rows * 160, batch_size=4, learning_rate=1e-2).wait()
        asked = {"model": model, "messages": "sum", "project": "p", "temperature": 0, "max_tokens": 40}
        answer = platform.chat.complete(**asked)
        assert (answer.choices[0].message.reasoning, answer.text) == ("2+2", "4")
        assert answer.usage.reasoning_tokens == len("<think>\n2+2\n</think>\n\n")
        chunks = list(platform.chat.stream(**asked, stop="nowhere", logprobs=True))
        assert "".join(chunk.reasoning for chunk in chunks) == "2+2"
        assert "".join(chunk.text for chunk in chunks) == "4"
        tools = platform.chat.complete(**asked, logprobs=True)
        written = "".join(entry.token for entry in tools.choices[0].logprobs or ())
        assert written == "<think>\n2+2\n</think>\n\n4"
