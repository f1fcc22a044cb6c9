"""Completions that were stored on request (`store: true`), listed and shown as clients of the format ask for them."""

from collections.abc import Mapping
from typing import Literal

import attrs

from modelyard.domain.completion import Completion, StoredCompletion
from modelyard.formats.chat.response import ChatCompletion, completion_json
from modelyard.formats.converter import structure
from modelyard.formats.json import dumps, loads
from modelyard.http.error_responses import ERROR
from modelyard.http.interface import Auth, Interface
from modelyard.http.interfaces import INFERENCE, TRAINING
from modelyard.http.listing import NAMESPACE, PAGING, requested_page
from modelyard.http.message import JSON_HEADER, Response
from modelyard.http.route import Parameter, Route, RouteCall


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


def _shown(stored: StoredCompletion) -> bytes:
    completion = structure(Completion, loads(dumps(stored.answer)))
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


_FILTERS = (
    Parameter("model", description="Only those of this model, as it was named in the request."),
    Parameter("metadata[key]", description="Only those with this value of the metadata's `key`, which stands for any."),
)


def _routes(base: str, interface: Interface) -> tuple[Route, ...]:
    listing = Route(
        "GET",
        f"{base}/chat/completions",
        interface,
        Auth.BEARER,
        list_chat_completions,
        response=StoredChatCompletionPage,
        summary="List the completions that were stored.",
        query=(*PAGING, *NAMESPACE, *_FILTERS),
        error_format=ERROR,
    )
    one = Route(
        "GET",
        f"{base}/chat/completions/{{completion_id}}",
        interface,
        Auth.BEARER,
        show_chat_completion,
        response=StoredChatCompletion,
        summary="Show a completion that was stored.",
        error_format=ERROR,
    )
    return listing, one


ROUTES: tuple[Route, ...] = (
    *_routes("/v1", TRAINING),
    *_routes("/inference/v1", INFERENCE),
)
