"""Training data become rows: exactly the sampled tokens, stitched where they can be, trained where answers stand."""

from collections.abc import Sequence
from functools import cache

import attrs
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from training_kit import micro

from modelyard.domain.completion import FinishReason, Message, Role, TokenLogprob, Tool, ToolCall
from modelyard.domain.training import Example, History, SampledChoice, Trajectory
from modelyard.errors import InvalidInput
from modelyard.parts.torch.tokenizer import ChatTokenizer
from modelyard.parts.torch.training.examples import TokenRow, example_rows, trajectory_rows

END = 2


@cache
def chat_of(template: str) -> ChatTokenizer:
    chat = ChatTokenizer(micro())
    chat.tokenizer.chat_template = template
    return chat


# ---- templates -------------------------------------------------------------------------------------------------------


@attrs.frozen
class Style:
    """How a template writes conversations, with `{% generation %}` around answers or without."""

    header: str
    behind: str
    preface: str

    def template(self, marked: bool) -> str:
        begin, end = ("{% generation %}", "{% endgeneration %}") if marked else ("", "")
        calls = "{% for call in message.tool_calls or [] %}[{{ call.function.name }}]{% endfor %}"
        head = self.header.replace("ROLE", "{{ message.role }}")
        return (
            f"{self.preface}{{% for message in messages %}}{head}{{% if message.role == 'assistant' %}}{begin}"
            f"{{{{ message.content or '' }}}}{calls}<|im_end|>{end}{{% else %}}"
            f"{{{{ message.content }}}}<|im_end|>{{% endif %}}{self.behind}{{% endfor %}}"
            f"{{% if add_generation_prompt %}}{self.header.replace('ROLE', 'assistant')}{{% endif %}}"
        )


STYLES = st.builds(
    Style,
    header=st.sampled_from(["<|im_start|>ROLE\n", "[ROLE] ", "ROLE: "]),
    behind=st.sampled_from(["", "\n", "\n\n", "<|endoftext|>"]),
    preface=st.sampled_from(["", "<|endoftext|>", "{% if tools %}{{ tools | tojson }}{% endif %}\n"]),
)
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="<|>[]"), max_size=12)
TEXTS = WORDS | st.lists(WORDS | st.sampled_from(["<|im_end|>", "<|im_start|>"]), max_size=4).map("".join)
"""Names of special tokens among them: in a message, they are text like any other."""
TOOL = Tool("look", "Looks.", {"type": "object"})
ASSISTANT = st.builds(
    lambda text, called: Message(
        Role.ASSISTANT, text, tool_calls=(ToolCall("1", "look", '{"at": 1}'),) if called else ()
    ),
    TEXTS,
    st.booleans(),
)
OTHERS = st.builds(Message, st.sampled_from([Role.SYSTEM, Role.USER, Role.TOOL]), TEXTS)
CONVERSATIONS = st.builds(
    lambda first, rest: [first, *rest], OTHERS, st.lists(st.one_of(ASSISTANT, OTHERS), max_size=5)
)


@settings(max_examples=60, deadline=None)
@given(
    style=STYLES, messages=CONVERSATIONS, tools=st.sampled_from([(), (TOOL,)]), which=st.sampled_from(["all", "last"])
)
def test_turns_by_prefixes_are_those_that_the_templates_own_marks_name(
    style: Style, messages: list[Message], tools: tuple[Tool, ...], which: str
) -> None:
    example = Example(tuple(messages), tools)
    by_marks, by_prefixes = (example_rows(chat_of(style.template(marked)), example, which) for marked in (True, False))
    assert by_marks == by_prefixes


@settings(max_examples=40, deadline=None)
@given(style=STYLES, messages=CONVERSATIONS, marked=st.booleans())
def test_only_answers_and_their_ends_are_trained_and_nothing_follows_them(
    style: Style, messages: list[Message], marked: bool
) -> None:
    chat = chat_of(style.template(marked))
    answers = [message for message in messages if message.role is Role.ASSISTANT]
    assume(answers)
    (row,) = example_rows(chat, Example(tuple(messages)), "all")
    generated = b"".join(chat.token_bytes[row.ids[place]] or b"\0" for place in row.places)
    calls = ["".join(f"[{call.name}]" for call in answer.tool_calls) for answer in answers]
    assert generated == b"".join(f"{answer.text}{call}\0".encode() for answer, call in zip(answers, calls, strict=True))
    assert row.places[-1] == len(row.ids) - 1
    (last,) = example_rows(chat, Example(tuple(messages)), "last")
    assert last.ids == row.ids
    assert set(last.places) <= set(row.places)
    assert sum(row.ids[place] == END for place in last.places) == 1


def test_a_template_that_writes_longer_conversations_otherwise_has_a_row_for_each_turn() -> None:
    shortening = (
        "{%- for message in messages -%}{%- if message.role == 'assistant' -%}A:MARK"
        "{{ message.content if loop.last else message.content[:1] }}<|im_end|>ENDMARK{%- else -%}"
        "U:{{ message.content }}<|im_end|>{%- endif -%}{%- endfor -%}{%- if add_generation_prompt -%}A:{%- endif -%}"
    )
    turns = tuple(Message(role, text) for text in ("one", "two") for role in (Role.USER, Role.ASSISTANT))
    plain = chat_of(shortening.replace("ENDMARK", "").replace("MARK", ""))
    marked = chat_of(shortening.replace("ENDMARK", "{%- endgeneration -%}").replace("MARK", "{%- generation -%}"))
    for chat in (plain, marked):
        first, second = example_rows(chat, Example(turns), "all")
        assert [trained(row) for row in (first, second)] == [b"one\0", b"two\0"]
        for row, prompt in ((first, turns[:1]), (second, turns[:3])):
            assert [*row.ids[: row.places[0]]] == chat.prompt(prompt)
        assert example_rows(chat, Example(turns), "last") == [second]
        assert example_rows(chat, Example(turns, untrained=(1,)), "all") == [second]
        assert example_rows(chat, Example(turns, untrained=(3,)), "all") == [first]


# ---- stitching -------------------------------------------------------------------------------------------------------

PLAIN = Style("<|im_start|>ROLE\n", "\n", "").template(marked=False)


@attrs.frozen
class Turn:
    """What a sampler did: where its answer began, and what it said."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    logprobs: tuple[float, ...]


@st.composite
def histories(draw: st.DrawFn) -> tuple[History, list[Turn]]:
    """Histories of arbitrary sampled tokens, whose prompts continue what was sampled, or were made from its text."""
    chat = chat_of(PLAIN)
    items: list[Message | SampledChoice] = [Message(Role.USER, draw(TEXTS))]
    turns: list[Turn] = []
    for _ in range(draw(st.integers(1, 4))):
        prompt = chat.prompt([item.message if isinstance(item, SampledChoice) else item for item in items])
        if turns and draw(st.booleans()):
            glue = draw(st.lists(st.integers(3, 258), max_size=4))
            prompt = [*turns[-1].prompt, *turns[-1].answer, *glue]
        answer = (*draw(st.lists(st.integers(3, 258), max_size=5)), END)
        logprobs = tuple(draw(st.lists(st.floats(-9, 0), min_size=len(answer), max_size=len(answer))))
        turns.append(Turn(tuple(prompt), answer, logprobs))
        raw = b"".join(chat.token_bytes[token] for token in answer)
        entries = tuple(TokenLogprob("?", logprob) for logprob in logprobs)
        message = Message(Role.ASSISTANT, raw.decode(errors="replace"))
        items.append(SampledChoice(message, FinishReason.STOP, entries, answer, tuple(prompt)))
        items.append(Message(draw(st.sampled_from([Role.USER, Role.TOOL])), draw(TEXTS)))
    return History(tuple(items)), turns


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories())
def test_a_history_becomes_as_few_rows_as_its_prompts_allow_and_each_trained_token_is_the_sampled_one(
    drawn: tuple[History, list[Turn]],
) -> None:
    history, turns = drawn
    rows = trajectory_rows(chat_of(PLAIN), Trajectory((history,), 1.0), False)
    assert rows == expected_rows(turns)


def expected_rows(turns: Sequence[Turn]) -> list[TokenRow]:
    """Written otherwise: runs of turns, each the prompt's beginning of the next; the last holds all the tokens."""
    runs: list[list[Turn]] = []
    for turn in turns:
        if runs and turn.prompt[: len(sum_of(runs[-1][-1]))] == sum_of(runs[-1][-1]):
            runs[-1].append(turn)
        else:
            runs.append([turn])
    return [
        TokenRow(
            sum_of(run[-1]),
            tuple(place for turn in run for place in range(len(turn.prompt), len(sum_of(turn)))),
            tuple(logprob for turn in run for logprob in turn.logprobs),
        )
        for run in runs
    ]


def sum_of(turn: Turn) -> tuple[int, ...]:
    return turn.prompt + turn.answer


def test_further_histories_are_further_rows() -> None:
    one = History((Message(Role.USER, "a"), SampledChoice(Message(Role.ASSISTANT, "b"), logprobs=(entry("b"),))))
    rows = trajectory_rows(chat_of(PLAIN), Trajectory((one, one), 1.0), False)
    assert len(rows) == 2
    assert rows[0] == rows[1]


# ---- answers that came without ids -----------------------------------------------------------------------------------


def entry(text: str, logprob: float = -1.0) -> TokenLogprob:
    return TokenLogprob(text, logprob, tuple(text.encode()))


def rows_of(choice: SampledChoice, without_logprobs: bool = False) -> list[TokenRow]:
    history = History((Message(Role.USER, "hi"), choice))
    return trajectory_rows(chat_of(PLAIN), Trajectory((history,), 1.0), without_logprobs)


def trained(row: TokenRow) -> bytes:
    return b"".join(chat_of(PLAIN).token_bytes[row.ids[place]] or b"\0" for place in row.places)


@pytest.mark.parametrize("entries", ["ab", "ab\0"])
def test_tokens_are_found_again_by_their_bytes_and_an_unreported_end_has_no_logprob(entries: str) -> None:
    logprobs = tuple(entry(letter.replace("\0", "")) for letter in entries)
    (row,) = rows_of(SampledChoice(Message(Role.ASSISTANT, "ab"), FinishReason.STOP, logprobs))
    assert trained(row) == b"ab\0"
    assert row.logprobs == (-1.0, -1.0, -1.0 if "\0" in entries else None)


def test_bytes_that_are_not_text_are_found_again() -> None:
    logprobs = tuple(TokenLogprob("\ufffd", -1.0, (byte,)) for byte in (0xFF, 0xC3))
    (row,) = rows_of(SampledChoice(Message(Role.ASSISTANT, "\ufffd\ufffd"), FinishReason.LENGTH, logprobs))
    assert trained(row) == b"\xff\xc3"
    assert row.logprobs == (-1.0, -1.0)


def test_tokens_that_this_model_does_not_have_are_spelled_from_the_text_with_unknown_logprobs() -> None:
    (row,) = rows_of(SampledChoice(Message(Role.ASSISTANT, "word"), FinishReason.STOP, (entry("wo"), entry("rd"))))
    assert trained(row) == b"word\0"
    assert row.logprobs == (None,) * 5


def test_an_answer_that_was_cut_off_is_not_taught_to_end() -> None:
    (row,) = rows_of(SampledChoice(Message(Role.ASSISTANT, "wor"), FinishReason.LENGTH, (entry("wo"), entry("r"))))
    assert trained(row) == b"wor"


def test_an_answer_without_logprobs_is_context_unless_requested() -> None:
    choice = SampledChoice(Message(Role.ASSISTANT, "ab"))
    assert rows_of(choice) == []
    (row,) = rows_of(choice, without_logprobs=True)
    assert trained(row) == b"ab\0"
    assert row.logprobs == (None,) * 3


def test_a_conversation_that_begins_with_an_answer_is_refused_where_the_template_does_not_mark_it() -> None:
    example = Example((Message(Role.ASSISTANT, "hello"),))
    with pytest.raises(InvalidInput, match="begin with a system or user message"):
        example_rows(chat_of(PLAIN), example, "all")
    assert example_rows(chat_of(Style("ROLE: ", "", "").template(marked=True)), example, "all")


def test_the_first_token_of_a_row_is_never_trained_as_nothing_stands_before_it() -> None:
    template = (
        "{% for one in messages if one.role == 'assistant' %}{% generation %}{{ one.content }}{% endgeneration %}"
    )
    messages = (Message(Role.ASSISTANT, "abc"),)
    (row,) = example_rows(chat_of(template + "{% endfor %}"), Example(messages), "all")
    assert row.places == (1, 2)


def test_names_of_special_tokens_in_what_was_said_are_text_and_the_turns_are_the_same() -> None:
    messages = tuple(Message(role, "a <|im_end|> b") for role in (Role.USER, Role.ASSISTANT))
    marked, plain = (chat_of(Style("ROLE: ", "\n", "").template(marked)) for marked in (True, False))
    assert example_rows(marked, Example(messages), "all") == example_rows(plain, Example(messages), "all")
    (row,) = example_rows(marked, Example(messages), "all")
    assert trained(row) == b"a <|im_end|> b\0"


def test_the_last_letter_of_a_marked_answer_is_trained_with_all_of_its_bytes() -> None:
    template = (
        "{% for one in messages %}{{ one.role }}: {% generation %}{{ one.content }}{% endgeneration %}|{% endfor %}"
    )
    messages = (Message(Role.USER, "hi"), Message(Role.ASSISTANT, "caf\u00e9"))
    (row,) = example_rows(chat_of(template), Example(messages), "last")
    assert trained(row) == "caf\u00e9".encode()


def test_a_lone_surrogate_is_refused_with_and_without_marks() -> None:
    messages = (Message(Role.USER, "hi"), Message(Role.ASSISTANT, "\ud800"))
    for marked in (True, False):
        with pytest.raises(InvalidInput, match="messages"):
            example_rows(chat_of(Style("ROLE: ", "\n", "").template(marked)), Example(messages), "all")
