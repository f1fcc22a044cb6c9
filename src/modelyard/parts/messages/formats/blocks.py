"""The turns of a conversation in the messages format, and the messages that they are."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import is_
from typing import Any, Literal

import attrs

from modelyard.domain.completion import ContentPart, Message, Role, ToolCall
from modelyard.errors import Problem
from modelyard.formats.chat.hints import CACHED, DIRECT, CacheControl, DirectCaller
from modelyard.formats.constraints import Length, Matching, Only, hint
from modelyard.formats.json import dumps

_ID = Length(1, 256)
_MEDIA = Matching(r"image/[a-z0-9.+-]{1,32}", "must be a media type such as image/png")
_OPT_OUT = "; the vendor refuses this, and Settings(strict_conversations=False) does not"
_BLANK = f"must not be blank{_OPT_OUT}"
_BASE64 = Matching(r"[A-Za-z0-9+/]+={0,2}", "must be base64")


@attrs.frozen(kw_only=True)
class CacheableBlock:
    """What may be the end of a cached prompt."""

    cache_control: CacheControl | None = attrs.field(default=None, metadata=hint(CACHED))


@attrs.frozen
class NoCitations:
    """A setting by which nothing is cited."""

    enabled: bool = attrs.field(default=False, validator=Only((False,), "must be false: nothing is cited"))


@attrs.frozen
class TextBlock(CacheableBlock):
    """A block of plain text."""

    type: Literal["text"]
    text: str
    citations: tuple[Mapping[str, Any], ...] | None = attrs.field(
        default=None, metadata=hint("where an earlier text was found, which models are not given")
    )


@attrs.frozen
class Base64Source:
    """An image itself, in base64."""

    type: Literal["base64"]
    media_type: str = attrs.field(validator=_MEDIA)
    data: str = attrs.field(validator=_BASE64)


@attrs.frozen
class UrlSource:
    """The address of an image. Nothing is fetched here."""

    type: Literal["url"]
    url: str


@attrs.frozen
class ImageBlock(CacheableBlock):
    """An image in a turn of the user."""

    type: Literal["image"]
    source: Base64Source | UrlSource


@attrs.frozen
class PlainSource:
    """The text of a document itself."""

    type: Literal["text"]
    data: str
    media_type: Literal["text/plain"] = "text/plain"


@attrs.frozen
class ContentSource:
    """The text of a document in blocks."""

    type: Literal["content"]
    content: str | tuple[TextBlock, ...]


@attrs.frozen
class DocumentBlock(CacheableBlock):
    """A document of text, which the model reads with its title and context before it. It is never cited."""

    type: Literal["document"]
    source: PlainSource | ContentSource
    title: str | None = None
    context: str | None = None
    citations: NoCitations | None = None


@attrs.frozen
class ToolUseBlock(CacheableBlock):
    """A call that the assistant made."""

    type: Literal["tool_use"]
    id: str = attrs.field(validator=_ID)
    name: str = attrs.field(validator=Length(1, 64))
    input: Mapping[str, Any] = attrs.field()
    caller: DirectCaller | None = attrs.field(default=None, metadata=hint(DIRECT))


@attrs.frozen
class ToolResultBlock(CacheableBlock):
    """The answer of a tool. With `is_error` the model reads "Error: " before it.

    Images follow in a message of the user after the answers of the turn, since models read no images in the answers of
    tools.
    """

    type: Literal["tool_result"]
    tool_use_id: str = attrs.field(validator=_ID)
    content: str | tuple[TextBlock | ImageBlock | DocumentBlock, ...] | None = None
    is_error: bool | None = None


@attrs.frozen
class ThinkingBlock:
    """Reasoning. That of an earlier turn is given to models that read it. Signatures are empty, and are not read."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


@attrs.frozen
class RedactedThinkingBlock:
    """Hidden reasoning of an earlier turn, which models are not given again."""

    type: Literal["redacted_thinking"]
    data: str


UserBlock = TextBlock | ImageBlock | DocumentBlock | ToolResultBlock
AssistantBlock = TextBlock | ToolUseBlock | ThinkingBlock | RedactedThinkingBlock


@attrs.frozen
class UserTurn:
    """A turn of the user: text, images, documents, and the answers of tools that were called before it."""

    role: Literal["user"]
    content: str | tuple[UserBlock, ...]


@attrs.frozen
class AssistantTurn:
    """An earlier turn of the assistant: text and calls."""

    role: Literal["assistant"]
    content: str | tuple[AssistantBlock, ...]


Turn = UserTurn | AssistantTurn


def blank_texts(system: str | Sequence[TextBlock] | None, turns: Sequence[Turn]) -> Iterator[Problem]:
    """Yield a problem for each text without a visible character. Only the last turn of the assistant may be blank."""
    if not isinstance(system, str):
        yield from _blanks(system or (), "system")
    for at, turn in enumerate(turns):
        if at == len(turns) - 1 and turn.role == "assistant" and not turn.content:
            continue
        if isinstance(turn.content, str):
            if not turn.content.strip():
                yield Problem(("messages", at, "content"), _BLANK)
            continue
        if not turn.content:
            yield Problem(("messages", at, "content"), _BLANK)
        yield from _blanks(turn.content, "messages", at, "content")


def _blanks(blocks: Sequence[object], *place: str | int) -> Iterator[Problem]:
    for at, block in enumerate(blocks):
        if isinstance(block, TextBlock) and not block.text.strip():
            yield Problem((*place, at, "text"), _BLANK)
        if isinstance(block, ToolResultBlock) and isinstance(block.content, tuple):
            yield from _blanks(block.content, *place, at, "content")


def vendors_refusals(turns: Sequence[Turn]) -> Iterator[Problem]:
    """Yield a problem for each call that is answered twice in a turn or has the id of another one, and for white space
    that ends a begun answer.
    """
    for at, turn in enumerate(turns):
        seen = set[tuple[str, str]]()
        for place, block in enumerate(() if isinstance(turn.content, str) else turn.content):
            name, id_, says = _named(block)
            if id_ and (name, id_) in seen:
                yield Problem(("messages", at, "content", place, name), says + _OPT_OUT)
            seen.add((name, id_))
    if not turns or turns[-1].role != "assistant" or not (last := turns[-1].content):
        return
    text = last if isinstance(last, str) else last[-1].text if isinstance(last[-1], TextBlock) else ""
    if text.strip() and text != text.rstrip():
        yield Problem(("messages", len(turns) - 1, "content"), f"must not end in white space{_OPT_OUT}")


def _named(block: object) -> tuple[str, str, str]:
    """Return the member of a block that names a call, with its value, and what is wrong if another block has it, too;
    empty strings for other blocks.
    """
    if isinstance(block, ToolUseBlock):
        return "id", block.id, "is the id of a call before, too"
    if isinstance(block, ToolResultBlock):
        return "tool_use_id", block.tool_use_id, "is answered before, too"
    return "", "", ""


def messages_of(system: str | Sequence[TextBlock] | None, turns: Sequence[Turn]) -> tuple[Message, ...]:
    """Return the messages of a conversation: the system's first, and the answers of tools before the rest of a turn."""
    found: list[Message] = []
    if system:
        found.append(Message(Role.SYSTEM, system if isinstance(system, str) else _text(system)))
    kinds = [*map(type, turns)]
    for turn in _joined(turns) if any(map(is_, kinds, kinds[1:])) else turns:
        if isinstance(turn.content, str):
            found.append(Message(Role(turn.role), turn.content))
        elif isinstance(turn, UserTurn):
            found += _of_user(turn.content)
        else:
            found.append(_of_assistant(turn.content))
    return tuple(found)


def _joined(turns: Sequence[Turn]) -> Iterator[Turn]:
    """Yield the turns; of neighbours of one role the calls are in one, and the answers of tools come first."""
    for kind, group in groupby(turns, key=type):
        several = list(group)
        of_tools = [block for turn in several for block in _blocks(turn) if isinstance(block, _OF_TOOLS)]
        if len(several) == 1 or not of_tools:
            yield from several
        elif kind is AssistantTurn:
            yield _with(several[0], [block for turn in several for block in _blocks(turn)])
        else:
            yield _with(several[0], of_tools)
            for turn in several:
                if rest := [block for block in _blocks(turn) if not isinstance(block, _OF_TOOLS)]:
                    yield _with(turn, rest)


_OF_TOOLS = (ToolUseBlock, ToolResultBlock)


def _with(turn: Turn, blocks: Sequence[Any]) -> Turn:
    content: Any = tuple(blocks)
    return attrs.evolve(turn, content=content)


def _blocks(turn: Turn) -> Sequence[UserBlock | AssistantBlock]:
    return (TextBlock(type="text", text=turn.content),) if isinstance(turn.content, str) else turn.content


def _of_user(blocks: Sequence[UserBlock]) -> Iterator[Message]:
    rest: list[object] = []
    for block in blocks:
        if not isinstance(block, ToolResultBlock):
            continue
        answered = block.content or ""
        text = answered if isinstance(answered, str) else _text(answered)
        shown = f"Error: {text}" if block.is_error else text
        yield Message(Role.TOOL, shown, tool_call_id=block.tool_use_id)
        rest += [] if isinstance(answered, str) else [one for one in answered if isinstance(one, ImageBlock)]
    rest += [block for block in blocks if not isinstance(block, ToolResultBlock)]
    if rest and not any(isinstance(block, ImageBlock) for block in rest):
        yield Message(Role.USER, _text(rest))
    elif rest:
        yield Message(Role.USER, tuple(map(_part, rest)))
    elif not blocks:
        yield Message(Role.USER, "")


def _of_assistant(blocks: Sequence[AssistantBlock]) -> Message:
    used = [block for block in blocks if isinstance(block, ToolUseBlock)]
    calls = tuple(ToolCall(block.id, block.name, dumps(block.input).decode()) for block in used)
    reasoning = "".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock)) or None
    return Message(Role.ASSISTANT, _text(blocks) or (None if calls else ""), tool_calls=calls, reasoning=reasoning)


def _text(blocks: Sequence[object]) -> str:
    return "".join(_written(block) for block in blocks)


def _written(block: object) -> str:
    """Return the text of a block, "" if it has none; a document's text is set apart."""
    if isinstance(block, DocumentBlock):
        source = block.source
        text = source.data if isinstance(source, PlainSource) else source.content
        parts = [block.title, block.context, text if isinstance(text, str) else _text(text)]
        return "".join(f"{part}\n\n" for part in parts if part)
    return block.text if isinstance(block, TextBlock) else ""


def _part(block: object) -> ContentPart:
    if not isinstance(block, ImageBlock):
        return ContentPart("text", _written(block))
    source = block.source
    url = source.url if isinstance(source, UrlSource) else f"data:{source.media_type};base64,{source.data}"
    return ContentPart("image_url", data={"url": url, "detail": "auto"})
