"""The pages of items that clients of responses receive."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs

from modelyard.errors import InvalidInput
from modelyard.http.listing import DEFAULT_PAGE, MAX_PAGE
from modelyard.http.route import Parameter, RouteCall
from modelyard.parts.responses.formats.replay import MOST_EVENTS

PAGING = (
    Parameter("after", description="Continue after the item with this id."),
    Parameter("limit", {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": DEFAULT_PAGE}, "How many."),
    Parameter("order", {"type": "string", "enum": ["asc", "desc"], "default": "desc"}, "In which order."),
)
STREAM = Parameter("stream", {"type": "string", "enum": ["true", "false"]}, "Whether to send its events as they come.")
AFTER = Parameter(
    "starting_after",
    {"type": "integer", "minimum": -1, "maximum": MOST_EVENTS, "default": -1},
    "With stream: continue after the event of this number.",
)
INCLUDE = Parameter("include", {"type": "array", "items": {"type": "string"}}, "Has no effect here: all is shown.")


@attrs.frozen
class ResponseItemPage:
    """Some items of a response's input. `after` = `last_id` asks for the next; both ids are "" if there are none."""

    object: Literal["list"]
    data: tuple[Mapping[str, Any], ...]
    has_more: bool
    first_id: str
    last_id: str


def item_page(call: RouteCall, items: Sequence[Mapping[str, Any]]) -> ResponseItemPage:
    """Return the part of the items that is requested, the last first unless another order is. Raises `InvalidInput`."""
    limit, order, after = call.integer("limit", DEFAULT_PAGE, 1, MAX_PAGE), call.one("order"), call.one("after")
    if order not in (None, "asc", "desc"):
        raise InvalidInput.at("query", "order", msg="must be 'asc' or 'desc'", type="literal_error")
    listed = [*items] if order == "asc" else [*reversed(items)]
    if after is not None:
        places = [at for at, item in enumerate(listed) if item["id"] == after]
        if not places:
            raise InvalidInput.at("query", "after", msg="must be the id of an item of this input")
        listed = listed[places[0] + 1 :]
    page = listed[:limit]
    first, last = (str(page[0]["id"]), str(page[-1]["id"])) if page else ("", "")
    return ResponseItemPage("list", tuple(map(_typed, page)), len(listed) > limit, first, last)


def _typed(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an item with its type, and the content of a message as a list, as clients expect them."""
    if item.get("type", "message") != "message" or "role" not in item:
        return item
    content = item["content"]
    if isinstance(content, str):
        said = item["role"] == "assistant"
        content = [{"type": "output_text", "text": content, "annotations": []} if said else _input_text(content)]
    return {"status": "completed", **item, "type": "message", "content": content}


def _input_text(text: str) -> Mapping[str, Any]:
    return {"type": "input_text", "text": text}
