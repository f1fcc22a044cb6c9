"""What Anthropic refuses of messages."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from modelyard.parts.doubles.vendors.images import TYPES
from modelyard.parts.doubles.vendors.refusal import Refusal, member, objects

ID, NAME = re.compile(r"[a-zA-Z0-9_-]+"), re.compile(r"[a-zA-Z0-9_-]{1,128}")
LEAST_BUDGET, LEAST_TOP_P, MOST_CACHED = 1024, 0.95, 4

Body = Mapping[str, Any]
Blocks = Sequence[Mapping[str, Any]]


def of_messages(body: Body) -> Iterator[Refusal]:
    """Yield what is refused of the body of a message, or of a count of its tokens."""
    turns = objects(body.get("messages"))
    blocks = [objects(turn.get("content")) for turn in turns]
    yield from _tools(body)
    if member(body, "thinking", "type") == "enabled":
        yield from _thinking(body, member(body, "thinking", "budget_tokens"))
    yield from _cached(body, blocks)
    yield from _stops(body.get("stop_sequences"))
    yield from _images(blocks)
    yield from _ids(blocks)
    yield from _unpaired(turns, blocks)
    yield from _last(turns, blocks)


def _of(blocks: Blocks, type_: str, name: str) -> list[Any]:
    return [block.get(name) for block in blocks if block.get("type") == type_]


def _tools(body: Body) -> Iterator[Refusal]:
    tools = objects(body.get("tools"))
    if body.get("tool_choice") is not None and not tools:
        yield Refusal("tool_choice may only be specified while providing tools")
    names = [tool.get("name") for tool in tools]
    if len({name for name in names if isinstance(name, str)}) < len(names) and None not in names:
        yield Refusal("tools: Tool names must be unique.")
    forced = member(body, "tool_choice", "name")
    if tools and forced is not None and forced not in names:
        yield Refusal(f"Tool '{forced}' not found in provided tools")
    for at, tool in enumerate(tools):
        if "input_schema" in tool:
            yield from _tool(tool, f"tools.{at}.custom")


def _tool(tool: Mapping[str, Any], place: str) -> Iterator[Refusal]:
    name, schema = tool.get("name"), tool.get("input_schema")
    if isinstance(name, str) and not NAME.fullmatch(name):
        yield Refusal(f"{place}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'")
    if isinstance(schema, dict) and "type" not in schema:
        yield Refusal(f"{place}.input_schema.type: Field required")
    elif isinstance(schema, dict) and schema["type"] != "object":
        yield Refusal(f"{place}.input_schema.type: Input should be 'object'")


def _thinking(body: Body, budget: object) -> Iterator[Refusal]:
    if isinstance(budget, int) and budget < LEAST_BUDGET:
        yield Refusal(f"thinking.enabled.budget_tokens: Input should be greater than or equal to {LEAST_BUDGET}")
    most = body.get("max_tokens")
    if isinstance(budget, int) and isinstance(most, int) and most <= budget and not _interleaves(body):
        yield Refusal("`max_tokens` must be greater than `thinking.budget_tokens`.")
    if body.get("temperature") not in (None, 1):
        yield Refusal("`temperature` may only be set to 1 when thinking is enabled.")
    top_p = body.get("top_p")
    if isinstance(top_p, int | float) and top_p < LEAST_TOP_P:
        yield Refusal("`top_p` must be greater than or equal to 0.95 or unset when thinking is enabled.")
    if body.get("top_k") is not None:
        yield Refusal("`top_k` must be unset when thinking is enabled.")
    if member(body, "tool_choice", "type") in ("any", "tool"):
        yield Refusal("Thinking may not be enabled when tool_choice forces tool use.")


def _cached(body: Body, blocks: Sequence[Blocks]) -> Iterator[Refusal]:
    every = [*objects(body.get("tools")), *objects(body.get("system"))]
    for block in (block for turn in blocks for block in turn):
        every += [block, *objects(block.get("content"))]
    found = sum(block.get("cache_control") is not None for block in every)
    if found > MOST_CACHED:
        yield Refusal(f"A maximum of {MOST_CACHED} blocks with cache_control may be provided. Found {found}.")


def _stops(stops: object) -> Iterator[Refusal]:
    if isinstance(stops, list) and any(isinstance(stop, str) and not stop.strip() for stop in stops):
        yield Refusal("stop_sequences: each stop sequence must contain non-whitespace")


def _images(blocks: Sequence[Blocks]) -> Iterator[Refusal]:
    for at, turn in enumerate(blocks):
        for number, block in enumerate(turn):
            place = f"messages.{at}.content.{number}"
            yield from _image(block, place)
            for inner, one in enumerate(objects(block.get("content"))):
                yield from _image(one, f"{place}.tool_result.content.{inner}")


def _image(block: Mapping[str, Any], place: str) -> Iterator[Refusal]:
    source = member(block, "source") if block.get("type") == "image" else None
    type_ = member(source, "media_type") if member(source, "type") == "base64" else None
    if isinstance(type_, str) and type_ not in TYPES:
        wanted = "'image/jpeg', 'image/png', 'image/gif' or 'image/webp'"
        yield Refusal(f"{place}.image.source.base64.media_type: Input should be {wanted}")


def _interleaves(body: Body) -> bool:
    """With tools, a beta lets the budget span several answers; whether it is asked for is in a header."""
    return bool(body.get("tools"))


def _ids(blocks: Sequence[Blocks]) -> Iterator[Refusal]:
    seen = set[str]()
    for at, turn in enumerate(blocks):
        for number, block in enumerate(turn):
            for type_, name in (("tool_use", "id"), ("tool_result", "tool_use_id")):
                id_ = block.get(name) if block.get("type") == type_ else None
                if isinstance(id_, str) and not ID.fullmatch(id_):
                    place = f"messages.{at}.content.{number}.{type_}.{name}"
                    yield Refusal(f"{place}: String should match pattern '^[a-zA-Z0-9_-]+$'")
        for id_ in _of(turn, "tool_use", "id"):
            if isinstance(id_, str) and id_ in seen:
                yield Refusal(f"messages.{at}: `tool_use` ids must be unique")
            seen |= {id_} if isinstance(id_, str) else set()


def _unpaired(turns: Sequence[Mapping[str, Any]], blocks: Sequence[Blocks]) -> Iterator[Refusal]:
    called: list[Any] = []
    for at, role, content in _merged(turns, blocks):
        answered = _of([block for _, block in content], "tool_result", "tool_use_id") if role == "user" else []
        if missing := [id_ for id_ in called if isinstance(id_, str) and id_ not in answered]:
            each = "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
            ids = ", ".join(map(str, missing))
            words = "`tool_use` ids were found without `tool_result` blocks immediately after"
            yield Refusal(f"messages.{at - 1}: {words}: {ids}. {each}")
        for place, block in content:
            id_ = block.get("tool_use_id") if block.get("type") == "tool_result" else None
            if isinstance(id_, str) and id_ not in called:
                each = "Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
                words = f"unexpected `tool_use_id` found in `tool_result` blocks: {id_}"
                yield Refusal(f"{place}: {words}. {each}")
        called = _of([block for _, block in content], "tool_use", "id") if role == "assistant" else []


def _merged(
    turns: Sequence[Mapping[str, Any]], blocks: Sequence[Blocks]
) -> Iterator[tuple[int, object, list[tuple[str, Mapping[str, Any]]]]]:
    """Yield the turns as the vendor reads them, and an empty one at the end: neighbours of one role are one. Each has
    the number of its first message, its role, and its blocks with their places."""
    for role, group in groupby(enumerate([*turns, {}]), key=lambda numbered: numbered[1].get("role")):
        numbers = [at for at, _ in group]
        content = [
            (f"messages.{at}.content.{number}", block)
            for at in numbers
            for number, block in enumerate(blocks[at] if at < len(blocks) else [])
        ]
        yield numbers[0], role, content


def _last(turns: Sequence[Mapping[str, Any]], blocks: Sequence[Blocks]) -> Iterator[Refusal]:
    for content in blocks:
        if any(block.get("type") == "text" and block.get("text") == "" for block in content):
            yield Refusal("messages: text content blocks must be non-empty")
    for at, turn in enumerate(turns[:-1]):
        if turn.get("content") in ("", []):
            words = "all messages must have non-empty content except for the optional final assistant message"
            yield Refusal(f"messages.{at}: {words}")
    last = turns[-1] if turns else {}
    said = last.get("content")
    text = said if isinstance(said, str) else member(blocks[-1][-1], "text") if turns and blocks[-1] else None
    if last.get("role") == "assistant" and isinstance(text, str) and text != text.rstrip():
        yield Refusal("messages: final assistant content cannot end with trailing whitespace")
