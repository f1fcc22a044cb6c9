"""Embeddings, below both of the bases that clients of the chat format use."""

from functools import partial

from modelyard.flow import Call, Flow
from modelyard.http.auth import attribution
from modelyard.http.interface import Auth
from modelyard.http.message import JSON_HEADER, Response
from modelyard.http.route import Body, Route, RouteCall
from modelyard.parts.embeddings import formats as shape
from modelyard.parts.embeddings.interface import EMBEDDINGS

LONG = 2**14
"""Numbers from which an answer is written off the event loop."""

MANY = 64
"""Inputs from which a request is read off the event loop."""


def create_embeddings(call: RouteCall) -> Flow[Response | None]:
    """Embed the inputs of a request."""
    booked_on = attribution(call.headers, call.principal)
    given = call.body.get("input") if isinstance(call.body, dict) else None
    many = isinstance(given, list) and len(given) > MANY
    parsed = yield Call(partial(shape.read_embeddings, call.body, "body"), many, call.threads)
    made = yield from call.platform.embeddings._flow(parsed.request, booked_on, call.client)
    long = sum(map(len, made.vectors)) > LONG
    body = yield Call(partial(shape.embeddings_json, made, parsed.in_base64), long, call.threads)
    return Response(200, [JSON_HEADER], body)


def _routes(path: str) -> tuple[Route, ...]:
    """Return the route with and without a slash at its end: a redirect would lose bodies and keys."""
    return tuple(
        Route(
            "POST",
            path + end,
            EMBEDDINGS,
            Auth.BEARER,
            create_embeddings,
            body=Body.CHAT,
            request=shape.EmbeddingsBody,
            response=shape.EmbeddingsAnswer,
            summary="Create embeddings.",
        )
        for end in ("", "/")
    )


ROUTES: tuple[Route, ...] = (*_routes("/v1/embeddings"), *_routes("/inference/v1/embeddings"))
