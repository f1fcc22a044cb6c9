"""How two histories are compared: by a digest of their messages, message after message, and of their tokens."""

import json
from collections.abc import Sequence

import attrs

from modelyard.domain.canonical import canonical_json
from modelyard.domain.completion import ContentPart, Message, Role, Tool, ToolCall
from modelyard.formats.chat.messages import message_object
from modelyard.formats.chat.tools import tool_object
from modelyard.lazy import hashlib

START = ""
"""The digest of no messages."""


def chained(before: str, form: str) -> str:
    """Return the digest of a history and one more message."""
    return hashlib.sha256(f"{before}\n{form}".encode("utf-8", "surrogatepass")).hexdigest()


def exact_form(message: Message) -> str:
    """Return a message as it is."""
    return canonical_json(message_object(message))


def common_form(message: Message) -> str:
    """Return a message as histories are compared by it: the same in every format of an API.

    Text is text, in parts or not; the arguments of a call are its JSON, however that is spaced; reasoning, which many
    clients do not send back, is left out. Whether the tokens are the same is another question.
    """
    role = Role.SYSTEM if message.role is Role.DEVELOPER else message.role
    calls = tuple(ToolCall(call.id, call.name, _arguments(call.arguments)) for call in message.tool_calls)
    return exact_form(Message(role, _content(message), message.name, calls, message.tool_call_id))


def _content(message: Message) -> str | tuple[ContentPart, ...] | None:
    if isinstance(message.content, tuple) and any(part.type != "text" for part in message.content):
        return message.content
    return message.text


def _arguments(text: str) -> str:
    try:
        return canonical_json(json.loads(text)) if text.strip() else "{}"
    except (ValueError, RecursionError):
        return text


def tools_digest(tools: Sequence[Tool]) -> str:
    """Return the digest of the tools that were offered; "" for none."""
    return chained(START, canonical_json([tool_object(tool) for tool in tools])) if tools else START


@attrs.frozen(eq=False)
class HistoryDigests:
    """The digests of a history after each of its messages; the first is that of none."""

    messages: tuple[Message, ...]
    common: tuple[str, ...]
    exact: tuple[str, ...]

    @classmethod
    def of(cls, messages: tuple[Message, ...], known: "Sequence[HistoryDigests]" = ()) -> "HistoryDigests":
        """Digest the messages of a prompt; what begins a history that is `known` is not digested again."""
        shared, begun = 0, _NONE
        for other in known:
            length = len(other.messages)
            if messages[:length] != other.messages:
                length = common_length(messages, other.messages)
            if length > shared:
                shared, begun = length, other
        common, exact = list(begun.common[: shared + 1]), list(begun.exact[: shared + 1])
        for message in messages[shared:]:
            both = _both(common[-1], exact[-1], message)
            common.append(both[0])
            exact.append(both[1])
        return cls(messages, tuple(common), tuple(exact))

    def answered(self, answer: Message) -> "HistoryDigests":
        """Return those of the history with the answer."""
        common, exact = _both(self.common[-1], self.exact[-1], answer)
        return HistoryDigests((*self.messages, answer), (*self.common, common), (*self.exact, exact))


_NONE = HistoryDigests((), (START,), (START,))


def _both(common: str, exact: str, message: Message) -> tuple[str, str]:
    form = exact_form(message)
    found = chained(exact, form)
    is_common = type(message.content) is str and not (message.tool_calls or message.reasoning)
    if common == exact and is_common and message.role is not Role.DEVELOPER:
        return found, found
    return chained(common, common_form(message)), found


def common_length(one: Sequence[object], other: Sequence[object]) -> int:
    """Return how many items both begin with.

    >>> common_length("trained", "training")
    5
    """
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (mine, theirs) in pairs if mine != theirs), min(len(one), len(other)))
