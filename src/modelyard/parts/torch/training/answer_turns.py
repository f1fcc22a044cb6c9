"""One answer of a conversation as a chat template writes it, behind the prompt that asks for it."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from modelyard.domain.completion import Message, Tool
from modelyard.errors import InvalidInput, Problem
from modelyard.parts.torch.reasoning import CLOSING, OPENING
from modelyard.parts.torch.rendered import Rendered
from modelyard.parts.torch.tokenizer import ChatTokenizer

_THINKING = re.compile(rf"{OPENING}\s*(?P<closed>{CLOSING}\s*)?\Z")
_PROBE = "\ufdd2"
"""A noncharacter: no template writes it unless it is in a message."""

_LEFT_OUT = "is left out by this model's chat template, so it would not be trained; leave out the row"


@attrs.frozen
class AnswerTurn:
    """The tokens of a prompt and of its answer up to the end, and the places in the answer of those that are trained:
    all, or those that the template marks with `{% generation %}`. `text` is what the template writes of the answer,
    `whole` what it writes of the conversation up to there.
    """

    prompt: Sequence[int]
    answer: Sequence[int]
    trained: Sequence[int]
    text: str
    whole: str


def answer_turn(
    chat: ChatTokenizer, messages: Sequence[Message], place: int, tools: Sequence[Tool], after_end: bool = False
) -> AnswerTurn:
    """Return the assistant's message at a place. Raises `InvalidInput` if the template does not write it behind the
    prompt that is served.
    """
    whole = chat.rendered(messages[: place + 1], tools)
    prompt = chat.rendered(messages[:place], tools, add_generation_prompt=True) if place else whole.before_marks()
    if prompt is None:
        msg = "is an assistant's: its beginning cannot be located; begin with a system or user message"
        raise InvalidInput.at("messages", place, msg=msg)
    answer = _answer(chat, whole, prompt, messages[place])
    if answer is None:
        msg = "cannot be trained: this model's chat template writes it otherwise than the prompt that asks for it"
        raise InvalidInput.at("messages", place, msg=msg)
    before, _ = chat.encoded(prompt.text)
    ids, generated = _tokens(chat, before, whole, prompt, answer)
    ends = () if after_end else chat.end_tokens
    end = next((number + 1 for number, token in enumerate(ids) if token in ends), len(ids))
    trained = [number for number in range(end) if generated[number]]
    return AnswerTurn(before, ids[: trained[-1] + 1] if trained else [], trained, answer.text, whole.text)


def _answer(chat: ChatTokenizer, whole: Rendered, prompt: Rendered, message: Message) -> Rendered | None:
    """Return what the template writes behind the prompt; None if it writes something else there.

    A prompt may open the thinking, which the template does not write with an answer: then it is closed here, behind the
    reasoning if there is any.
    """
    if whole.text.startswith(prompt.text):
        return whole.after(len(prompt.text))
    opened = _THINKING.search(prompt.text)
    if opened is None or not whole.text.startswith(prompt.text[: opened.start()]):
        return None
    answer = whole.after(opened.start())
    if opened["closed"]:
        return answer
    reasoning = chat.escaped(_parts_of(message)[0])
    return answer.behind(f"{reasoning}\n{CLOSING}\n\n" if reasoning else f"{CLOSING}\n\n")


def _parts_of(message: Message) -> tuple[str, str]:
    """Return the reasoning and the content of an answer; some data sets have both in the content."""
    thought, _, content = message.text.rpartition(CLOSING)
    return (message.reasoning or thought.strip().removeprefix(OPENING)).strip(), content.strip()


def _tokens(
    chat: ChatTokenizer, before: Sequence[int], whole: Rendered, prompt: Rendered, answer: Rendered
) -> tuple[list[int], list[bool]]:
    """Return the tokens of an answer, and which of them were generated. If the texts of prompt and answer would
    have a token in common, the answer has tokens of its own: it is sampled behind those of the prompt.
    """
    if whole.text.startswith(prompt.text):
        ids, spans = chat.encoded(whole.text)
        if ids[: len(before)] == before:
            return ids[len(before) :], whole.generated(spans)[len(before) :]
    ids, spans = chat.encoded(answer.text)
    return ids, answer.generated(spans)


# ---- nothing is left out -----------------------------------------------------------------------------------------


def check_written(
    chat: ChatTokenizer, messages: Sequence[Message], tools: Sequence[Tool], turns: Sequence[tuple[int, AnswerTurn]]
) -> None:
    """Check that a template writes all of a conversation up to its last trained turn. Raises `InvalidInput`."""
    last, text = turns[-1][0], turns[-1][1].whole
    problems = [
        Problem(("tools", at), _LEFT_OUT) for at, tool in enumerate(tools) if chat.escaped(tool.name) not in text
    ]
    answers = {place: turn.text for place, turn in turns}
    for place, message in enumerate(messages[: last + 1]):
        problems += [
            Problem(("messages", place, *where), _LEFT_OUT)
            for where, values in _left_out(chat, message, answers.get(place), text)
            if not _transformed(chat, messages[: last + 1 if place not in answers else place + 1], place, values, tools)
        ]
    if problems:
        raise InvalidInput(problems)


def _left_out(
    chat: ChatTokenizer, message: Message, answer: str | None, text: str
) -> Iterator[tuple[tuple[str | int, ...], dict[str, str]]]:
    """Yield the members of a message that are not written as they stand, each with a change that shows whether they are
    written at all. The reasoning of a turn that is not trained may be left out, as it is when the model is served.
    """
    written = text if answer is None else answer
    reasoning, content = _parts_of(message)
    if content and chat.escaped(content) not in written:
        yield ("content",), {"content": _PROBE}
    if answer is not None and reasoning and chat.escaped(reasoning) not in written:
        yield ("reasoning_content" if message.reasoning else "content",), {"reasoning": _PROBE}
    for number, call in enumerate(message.tool_calls):
        names = [one.name for one in message.tool_calls[: number + 1]]
        if written.count(chat.escaped(call.name)) < names.count(call.name):
            yield ("tool_calls", number), {}


def _transformed(
    chat: ChatTokenizer, messages: Sequence[Message], place: int, values: dict[str, str], tools: Sequence[Tool]
) -> bool:
    """Return whether something is written in place of a member, such as its JSON."""
    if not values:
        return False
    changed: Any = values
    probed = [attrs.evolve(one, **changed) if at == place else one for at, one in enumerate(messages)]
    return _PROBE in chat.rendered(probed, tools).text
