"""Completions that were stored on request (`store: true`): listed, shown with their messages, changed and deleted."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import attrs

from modelyard.domain.completion import Completion, CompletionRequest, Message, StoredCompletion
from modelyard.errors import InvalidInput
from modelyard.formats.chat.messages import InputPart, MessageToolCall, RefusalPart, message_object
from modelyard.formats.chat.request import check_metadata
from modelyard.formats.chat.response import ChatCompletion, completion_json
from modelyard.formats.converter import structure, structure_exactly
from modelyard.formats.json import dumps, kept_data
from modelyard.http.error_responses import ERROR
from modelyard.http.interface import Auth, Interface
from modelyard.http.interfaces import INFERENCE, TRAINING
from modelyard.http.listing import DEFAULT_PAGE, MAX_PAGE, NAMESPACE, PAGING, requested_order, requested_page
from modelyard.http.message import JSON_HEADER, Response, json_response
from modelyard.http.route import Body, Parameter, Route, RouteCall


@attrs.frozen(kw_only=True)
class StoredChatCompletion(ChatCompletion):
    """A completion that was stored, as it was answered, with all its details and the metadata of its request."""

    metadata: Mapping[str, str]


@attrs.frozen
class StoredChatCompletionPage:
    """Some stored completions. `after` = `last_id` asks for the next; both ids are "" where the page is empty."""

    object: Literal["list"]
    data: tuple[StoredChatCompletion, ...]
    has_more: bool
    first_id: str
    last_id: str


@attrs.frozen
class StoredMessage:
    """A message of the request of a stored completion. A content in parts is there both as its text and in parts."""

    id: str
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None
    content_parts: tuple[InputPart | RefusalPart, ...] | None = None
    name: str | None = None
    tool_calls: tuple[MessageToolCall, ...] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


@attrs.frozen
class StoredMessagePage:
    """Some messages of a stored completion. `after` = `last_id` asks for the next; both ids are "" without any."""

    object: Literal["list"]
    data: tuple[StoredMessage, ...]
    has_more: bool
    first_id: str
    last_id: str


@attrs.frozen
class StoredCompletionUpdate:
    """The metadata that a stored completion is to have in the place of its own; null for none."""

    metadata: Mapping[str, str] | None = attrs.field(validator=check_metadata)


@attrs.frozen
class StoredCompletionDeleted:
    """A stored completion that was deleted."""

    id: str
    object: Literal["chat.completion.deleted"]
    deleted: bool


def _shown(stored: StoredCompletion) -> bytes:
    completion = structure(Completion, kept_data(stored.answer))
    with_ids = any(choice.token_ids for choice in completion.choices)
    prompt_ids = bool(stored.request.get("return_token_ids"))
    answered = completion_json(completion, with_logprobs=True, with_ids=with_ids, prompt_ids=prompt_ids)
    return answered[:-1] + b',"metadata":' + dumps(stored.metadata) + b"}"


def list_chat_completions(call: RouteCall) -> Response:
    metadata = {
        name.removeprefix("metadata[").removesuffix("]"): values[-1]
        for name, values in call.query.items()
        if name.startswith("metadata[") and name.endswith("]")
    }
    entity, project, model = (call.one(name) for name in ("entity", "project", "model"))
    chat = call.platform.chat
    page = requested_page(
        call,
        lambda order: chat.list(entity=entity, project=project, model=model, metadata=metadata, order=order),
    )
    ids = [stored.id for stored in page] or [""]
    rest = dumps({"object": "list", "has_more": page.has_more, "first_id": ids[0], "last_id": ids[-1]})
    return Response(200, [JSON_HEADER], b'{"data":[' + b",".join(map(_shown, page)) + b"]," + rest[1:])


def show_chat_completion(call: RouteCall) -> Response:
    """Show a completion that was stored."""
    return Response(200, [JSON_HEADER], _shown(call.platform.chat.get(call.params["completion_id"])))


def list_completion_messages(call: RouteCall) -> Response:
    """List the messages of the request of a stored completion, in their order unless another one is requested."""
    stored = call.platform.chat.get(call.params["completion_id"])
    request = structure(CompletionRequest, kept_data(stored.request))
    messages = [_message(one, f"{stored.id}-{at}") for at, one in enumerate(request.messages)]
    if requested_order(call) == "desc":
        messages.reverse()
    limit, after = call.integer("limit", DEFAULT_PAGE, 1, MAX_PAGE), call.one("after")
    if after is not None:
        places = [at for at, one in enumerate(messages) if one["id"] == after]
        if not places:
            raise InvalidInput.at("query", "after", msg="must be the id of a message of this completion")
        messages = messages[places[0] + 1 :]
    page = messages[:limit]
    ids = [one["id"] for one in page] or [""]
    more = len(messages) > limit
    listed = {"object": "list", "data": page, "has_more": more, "first_id": ids[0], "last_id": ids[-1]}
    return json_response(listed)


def _message(message: Message, id: str) -> Mapping[str, Any]:
    written = message_object(message)
    if isinstance(written["content"], list):
        written |= {"content": message.text, "content_parts": written["content"]}
    return {"id": id, **written}


def update_chat_completion(call: RouteCall) -> Response:
    """Replace the metadata of a stored completion."""
    body = structure_exactly(StoredCompletionUpdate, call.body, "body")
    stored = call.platform.chat.update(call.params["completion_id"], metadata=body.metadata or {})
    return Response(200, [JSON_HEADER], _shown(stored))


def delete_chat_completion(call: RouteCall) -> Response:
    """Delete a stored completion."""
    completion_id = call.params["completion_id"]
    call.platform.chat.delete(completion_id)
    return json_response(StoredCompletionDeleted(completion_id, "chat.completion.deleted", True))


_FILTERS = (
    Parameter("model", description="Only those of this model, as it was named in the request."),
    Parameter("metadata[key]", description="Only those with this value of the metadata's `key`, which stands for any."),
)


def _routes(base: str, interface: Interface) -> tuple[Route, ...]:
    route = partial(Route, interface=interface, auth=Auth.BEARER, error_format=ERROR)
    one = f"{base}/chat/completions/{{completion_id}}"
    return (
        route(
            "GET",
            f"{base}/chat/completions",
            handler=list_chat_completions,
            response=StoredChatCompletionPage,
            summary="List the completions that were stored.",
            query=(*PAGING, *NAMESPACE, *_FILTERS),
        ),
        route("GET", one, handler=show_chat_completion, response=StoredChatCompletion),
        route(
            "POST",
            one,
            handler=update_chat_completion,
            body=Body.CONTROL,
            request=StoredCompletionUpdate,
            response=StoredChatCompletion,
        ),
        route("DELETE", one, handler=delete_chat_completion, response=StoredCompletionDeleted),
        route(
            "GET",
            f"{one}/messages",
            handler=list_completion_messages,
            response=StoredMessagePage,
            query=PAGING,
            summary="List the messages of a stored completion.",
        ),
    )


ON_TRAINING = _routes("/v1", TRAINING)
ON_INFERENCE = _routes("/inference/v1", INFERENCE)
