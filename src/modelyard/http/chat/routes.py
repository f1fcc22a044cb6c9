"""Chat completions on both interfaces (specification 4.2, 4.3), whole and streamed."""

from functools import partial

from modelyard.flow import Call, Flow
from modelyard.formats.chat.bounds import ParsedRequest
from modelyard.formats.chat.plain_fast import Held, read_plain, read_plain_text
from modelyard.formats.chat.request import ChatRequest, read_request
from modelyard.formats.chat.response import ChatCompletion, completion_json
from modelyard.formats.chat.stream import ChatCompletionChunk, Chunks
from modelyard.http.answer_stream import AnswerEvents, stream_answer
from modelyard.http.auth import attribution
from modelyard.http.error_responses import ERROR
from modelyard.http.interface import Auth, Interface
from modelyard.http.interfaces import INFERENCE, TRAINING
from modelyard.http.message import JSON_HEADER, Response, deprecation, parse
from modelyard.http.route import Body, Route, RouteCall
from modelyard.platform.chat.backend_stream import StreamStarted

LONG = 1000


def create_chat_completion(call: RouteCall, training: bool = False) -> Flow[Response | None]:
    platform = call.platform
    booked_on = attribution(call.headers, call.principal)
    parsed = call.body if type(call.body) is ParsedRequest else _structured(call.body, training)
    completion = platform.chat._pipeline(parsed.request, booked_on, training, call.client)
    if parsed.request.streamed:
        yield from stream_answer(completion, AnswerEvents(partial(_chunks, parsed=parsed), platform.clock))
        return None
    result = yield from completion
    answer = result.completion
    if not (parsed.with_logprobs or parsed.with_ids):
        body = completion_json(answer)
    else:
        shown = parsed.with_logprobs, parsed.with_ids, parsed.as_ids, parsed.request.return_token_ids
        write = partial(completion_json, answer, *shown)
        body = yield Call(write, answer.usage.completion_tokens > LONG, call.threads)
    headers = [JSON_HEADER]
    if result.entry.deprecation_date is not None:
        headers += deprecation(result.entry, platform.clock)
    return Response(200, headers, body)


def _read(raw: bytes, call: RouteCall, training: bool = False) -> object:
    def hold(name: str, text: str, at: int) -> Held:
        return call.platform.chat._kept.read(call.principal.entity, name, text, at)

    return read_plain_text(raw, training, hold) or parse(raw)


def _structured(body: object, training: bool) -> ParsedRequest:
    return read_plain(body, training) or read_request(body, "body", details=training)


def _chunks(started: StreamStarted, parsed: ParsedRequest) -> Chunks:
    return Chunks(
        started.id,
        started.created,
        started.model,
        with_usage=parsed.with_usage,
        with_logprobs=parsed.with_logprobs,
        with_ids=parsed.with_ids,
        as_ids=parsed.as_ids,
    )


# ---- routes ------------------------------------------------------------------------------------------------------


def _routes(path: str, interface: Interface, training: bool) -> tuple[Route, ...]:
    """Return the route with and without a trailing slash: a redirect would lose bodies and keys."""
    return tuple(
        Route(
            "POST",
            path + end,
            interface,
            Auth.BEARER,
            partial(create_chat_completion, training=True) if training else create_chat_completion,
            body=Body.CHAT,
            read=partial(_read, training=True) if training else _read,
            request=ChatRequest,
            response=ChatCompletion,
            events=ChatCompletionChunk,
            summary="Create a chat completion.",
            error_format=ERROR,
        )
        for end in ("", "/")
    )


ROUTES: tuple[Route, ...] = (
    *_routes("/inference/v1/chat/completions", INFERENCE, training=False),
    *_routes("/v1/chat/completions", TRAINING, training=True),
)
