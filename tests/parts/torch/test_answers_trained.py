"""Answers are trained behind the prompt that is served, up to the token that ends them; nothing is left out unsaid."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from modelyard.domain.completion import ContentPart, FinishReason, Message, Role, Tool, ToolCall
from modelyard.domain.training import Example, History, SampledChoice, Trajectory
from modelyard.errors import InvalidInput
from modelyard.parts.torch.tokenizer import ChatTokenizer
from modelyard.parts.torch.training.examples import TokenRow, example_rows, trajectory_rows

CORPUS = [
    "hello there, how are you?",
    "I am fine, thank you.",
    "a\n\nb\n\n\nc",
    "user assistant system",
    '{"x": 1}',
] * 20
SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""As the tokenizers of Qwen and Llama split: line breaks in a row are one piece."""
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|end|>"]

HEAD = "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
PROMPT = "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
PLAIN = HEAD + "{{ (m.content or '') + '<|im_end|>' }}{{ '\n' }}{%- endfor %}" + PROMPT
CHATML = PLAIN.replace("{{ (m", "{% generation %}{{ (m").replace(
    "'<|im_end|>' }}", "'<|im_end|>' }}{% endgeneration %}"
)
TRIMMED = PLAIN.replace("(m.content or '')", "(m.content or '') | trim")
FORGETFUL = (  # as Qwen 3: earlier thoughts are not written, the last answer has them or an empty block
    HEAD + "{%- if loop.last and m.role == 'assistant' %}{{ '<think>\n' + (m.reasoning_content or '') }}"
    "{{ '\n</think>\n\n' }}{% endif %}{{ m.content.split('</think>')[-1] + '<|im_end|>\n' }}{%- endfor %}" + PROMPT
)
OPENED = (  # as DeepSeek R1: the prompt opens the thinking, and no thoughts are written
    HEAD + "{{ m.content.split('</think>')[-1] + '<|im_end|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{%- endif %}"
)
CLOSED = OPENED.replace("<think>\n'", "<think>\n\n</think>\n\n'")


@cache
def chat_of(template: str | tuple[tuple[str, str], ...], eos: str = "<|im_end|>") -> ChatTokenizer:
    made = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLIT), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    made.add_tokens([AddedToken(text, special=False, normalized=False) for text in ("<think>", "</think>")])
    with TemporaryDirectory() as folder:
        PreTrainedTokenizerFast(tokenizer_object=made, eos_token=eos).save_pretrained(folder)
        config = Path(folder) / "tokenizer_config.json"
        named = template if isinstance(template, str) else [{"name": name, "template": text} for name, text in template]
        config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": named}))
        return ChatTokenizer(Path(folder))


# ---- what is trained -------------------------------------------------------------------------------------------------


def user(text: str) -> Message:
    return Message(Role.USER, text)


def assistant(text: str, **fields: Any) -> Message:
    return Message(Role.ASSISTANT, text, **fields)


def plain(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [
        {"role": str(one.role), "content": one.text, **({"reasoning_content": one.reasoning} if one.reasoning else {})}
        for one in messages
    ]


def text_of(chat: ChatTokenizer, messages: Sequence[Message], prompt: bool) -> str:
    text: str = chat.tokenizer.apply_chat_template(plain(messages), tokenize=False, add_generation_prompt=prompt)
    return text


def ids_of(chat: ChatTokenizer, text: str) -> list[int]:
    ids: list[int] = chat.tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def written_by_hand(chat: ChatTokenizer, messages: Sequence[Message], place: int) -> list[int]:
    """The tokens of an answer by the template's text alone."""
    prompt, whole = text_of(chat, messages[:place], True), text_of(chat, messages[: place + 1], False)
    if whole.startswith(prompt):
        joined, before = ids_of(chat, whole), ids_of(chat, prompt)
        ids = joined[len(before) :] if joined[: len(before)] == before else ids_of(chat, whole[len(prompt) :])
    else:
        thought = messages[place].reasoning
        closing = "" if "</think>" in prompt else f"{thought}\n</think>\n\n" if thought else "</think>\n\n"
        ids = ids_of(chat, closing + whole[len(prompt.split("<think>")[0]) :])
    return ids[: ids.index(ids_of(chat, "<|im_end|>")[0]) + 1]


def trained_spans(rows: Sequence[TokenRow]) -> list[tuple[list[int], list[int]]]:
    """Each run of trained tokens, and all that stands before it."""
    found = []
    for row in rows:
        starts = [place for place in row.places if place - 1 not in row.places]
        for start in starts:
            stop = next(place for place in range(start, len(row.ids) + 1) if place not in row.places)
            found.append(([*row.ids[:start]], [*row.ids[start:stop]]))
    return found


TEXTS = st.text("a\n .h", max_size=6) | st.sampled_from(["\nhello", "\n\n", "hello there", " fine", "<|im_end|>"])
ANSWERS = st.builds(lambda text, thought: assistant(text or "a", reasoning=thought), TEXTS, st.none())
THINKING = st.builds(
    lambda text, thought: assistant(text or "a", reasoning=thought),
    TEXTS,
    st.none() | st.sampled_from(["so", "h a\nb"]),
)


def conversations(answers: st.SearchStrategy[Message]) -> st.SearchStrategy[tuple[list[Message], list[bool]]]:
    turns = st.lists(st.tuples(TEXTS, answers, st.booleans()), min_size=1, max_size=3)
    return turns.map(
        lambda drawn: (
            [one for asked, answer, _ in drawn for one in (user(asked), answer)],
            [trained for _, _, trained in drawn],
        )
    )


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@pytest.mark.parametrize("template", [PLAIN, CHATML, TRIMMED, FORGETFUL, OPENED, CLOSED])
@given(data=st.data(), which=st.sampled_from(["all", "last"]))
def test_each_answer_stands_behind_its_served_prompt_with_the_tokens_that_the_template_writes(
    template: str, data: st.DataObject, which: Any
) -> None:
    chat = chat_of(template)
    messages, trained = data.draw(conversations(THINKING if template in (FORGETFUL, OPENED) else ANSWERS))
    untrained = tuple(2 * number + 1 for number, one in enumerate(trained) if not one)
    example = Example(tuple(messages), untrained=untrained)
    places = [
        2 * number + 1 for number, one in enumerate(trained) if one and (which == "all" or number == len(trained) - 1)
    ]
    rows = example_rows(chat, example, which)
    if "<|im_end|>" not in "".join(one.text for one in messages):  # in a message it is text, not the token
        assert trained_spans(rows) == [
            (ids_of(chat, text_of(chat, messages[:place], True)), written_by_hand(chat, messages, place))
            for place in places
        ]
    assert [before for before, _ in trained_spans(rows)] == [chat.prompt(messages[:place]) for place in places]
    assert all([*row.places] == sorted({*row.places}) for row in rows)


def test_a_line_break_that_the_template_joins_with_its_own_is_trained_as_it_is_sampled() -> None:
    for template in (PLAIN, CHATML):
        chat = chat_of(template)
        messages = (user("hi"), assistant("\nhello"), user("hi"), assistant("fine"))
        first, second = example_rows(chat, Example(messages), "all")
        assert [*first.ids[: first.places[0]]] == chat.prompt(messages[:1])
        assert chat.tokenizer.decode([first.ids[place] for place in first.places]) == "\nhello<|im_end|>"
        assert [*second.ids[: second.places[0]]] == chat.prompt(messages[:3])
        merged = ids_of(chat, text_of(chat, messages[:2], False))
        assert merged[: first.places[0]] != chat.prompt(messages[:1])  # so the case is what it is meant to be


def test_thoughts_within_the_content_are_trained_behind_an_opened_prompt() -> None:
    chat = chat_of(OPENED)
    (row,) = example_rows(chat, Example((user("hi"), assistant("<think>\nso\n</think>\n\nfine"))), "all")
    assert chat.tokenizer.decode([row.ids[place] for place in row.places]) == "so\n</think>\n\n\n\nfine<|im_end|>"


def test_a_choice_without_ids_is_trained_as_its_text_is() -> None:
    for template in (PLAIN, OPENED):
        chat = chat_of(template)
        messages = (user("hi"), assistant("\nfine"))
        choice = SampledChoice(messages[1], FinishReason.STOP)
        rows = trajectory_rows(chat, Trajectory((History((messages[0], choice)),)), without_logprobs=True)
        assert rows == example_rows(chat, Example(messages), "all")


# ---- where answers end -----------------------------------------------------------------------------------------------

CALLS = (
    "{% for m in messages %}{% if m.tool_calls %}{{ '<tool_call>' + m.tool_calls[0].function | tojson }}"
    "{{ '</tool_call><|end|>' }}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{% endfor %}{# tools #}"
)


@pytest.mark.parametrize(
    ("template", "ends"),
    [
        (PLAIN, ["<|endoftext|>", "<|im_end|>"]),
        (PLAIN.replace("'<|im_end|>'", "'\n<|end|>\n<|endoftext|>'"), ["<|endoftext|>", "<|end|>"]),
        (CALLS, ["<|endoftext|>", "<|im_end|>", "<|end|>"]),
        (PLAIN.replace("<|im_end|>", "###"), ["<|endoftext|>"]),
        ("{{ raise_exception('no') }}", ["<|endoftext|>"]),
        ("{% for m in messages %}{{ m.role }}{% endfor %}", ["<|endoftext|>"]),
    ],
)
def test_an_answer_ends_with_what_the_folder_declares_and_what_the_template_writes(
    template: str, ends: list[str]
) -> None:
    chat = chat_of(template, eos="<|endoftext|>")
    assert chat.end_tokens == {token for end in ends for token in ids_of(chat, end)}


# ---- named templates -------------------------------------------------------------------------------------------------


def test_the_template_for_tools_is_used_with_tools() -> None:
    chat = chat_of((("default", PLAIN), ("tool_use", "{% for t in tools %}{{ t.function.name }}{% endfor %}" + PLAIN)))
    tool = Tool("look")
    without, with_tools = chat.prompt((user("hi"),)), chat.prompt((user("hi"),), (tool,))
    assert with_tools == [*ids_of(chat, "look"), *without]
    (row,) = example_rows(chat, Example((user("hi"), assistant("fine")), (tool,)), "all")
    assert [*row.ids[: row.places[0]]] == with_tools
    with pytest.raises(InvalidInput, match=r"tools\.0: is left out"):
        example_rows(chat_of(PLAIN), Example((user("hi"), assistant("fine")), (tool,)), "all")


# ---- what a template leaves out --------------------------------------------------------------------------------------

CALL = ToolCall("1", "look", '{"at": 1}')
HIDING = (  # no system messages, and of a message with calls the first call alone
    "{% for m in messages if m.role != 'system' %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.tool_calls %}"
    "{{ m.tool_calls[0].function.name }}{% else %}{{ m.content }}{% endif %}<|im_end|>{% endfor %}" + PROMPT
)


@pytest.mark.parametrize(
    ("template", "messages", "place"),
    [
        (PLAIN, [user("hi"), assistant("fine", reasoning="so")], "messages.1.reasoning_content"),
        (PLAIN, [user("hi"), assistant("", tool_calls=(CALL,))], "messages.1.tool_calls.0"),
        (
            PLAIN,
            [user("hi"), assistant("", tool_calls=(CALL,)), Message(Role.TOOL, "3"), assistant("x")],
            "messages.1.tool_calls.0",
        ),
        (HIDING, [Message(Role.SYSTEM, "be brief"), user("hi"), assistant("fine")], "messages.0.content"),
        (HIDING, [user("hi"), assistant("wait", tool_calls=(CALL,))], "messages.1.content"),
        (HIDING, [user("hi"), assistant("", tool_calls=(CALL, CALL))], "messages.1.tool_calls.1"),
    ],
)
def test_what_a_template_leaves_out_of_a_row_is_refused_at_its_place(
    template: str, messages: list[Message], place: str
) -> None:
    with pytest.raises(InvalidInput) as wrong:
        example_rows(chat_of(template), Example(tuple(messages)), "all")
    assert [".".join(map(str, problem.loc)) for problem in wrong.value.problems] == [place]


def test_what_a_template_writes_in_another_form_is_not_left_out() -> None:
    quoting = PLAIN.replace("(m.content or '')", "(m.content | tojson if m.role == 'user' else m.content)")
    (row,) = example_rows(chat_of(quoting), Example((user('say "a"\n'), assistant("fine"))), "all")
    assert row.places
    earlier = (user("hi"), assistant("fine", reasoning="so"), user("hi"), assistant("fine", reasoning="well"))
    assert len(example_rows(chat_of(FORGETFUL), Example(earlier), "all")) == 2  # as the model is asked


def test_a_part_that_is_not_text_is_refused_at_its_place() -> None:
    image = attrs.evolve(user("x"), content=(ContentPart("text", "a"), ContentPart("image_url", data={"url": "x"})))
    with pytest.raises(InvalidInput, match=r"messages\.0\.content\.1: is image_url"):
        example_rows(chat_of(PLAIN), Example((image, assistant("fine"))), "all")
