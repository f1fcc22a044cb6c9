"""The header `Idempotency-Key`: the same request under the same key creates once, and is answered the same. Jobs keep
their key themselves, for as long as they are there; other creations are answered here."""

import hashlib
from collections.abc import Callable
from functools import wraps
from io import BytesIO
from typing import TypeVar, cast

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.identity import KEY_PATTERN, KeyedRequest, check_idempotency_key
from modelyard.errors import InvalidInput
from modelyard.http.message import JSON_HEADER, Response, dump, json_response
from modelyard.http.route import Parameter, PlainHandler, RouteCall
from modelyard.platform.idempotency import answer_once

T = TypeVar("T")

IDEMPOTENCY_KEY = Parameter(
    "Idempotency-Key",
    {"type": "string", "pattern": f"^{KEY_PATTERN}$"},
    "A name of yours for this request: sent again with it, the request creates nothing more.",
)


def idempotency_key(call: RouteCall) -> str | None:
    try:
        return check_idempotency_key(call.headers.text(b"idempotency-key"))
    except InvalidInput as wrong:
        raise InvalidInput.at("header", IDEMPOTENCY_KEY.name, msg=wrong.problems[0].msg) from None


def creating(create: Callable[[RouteCall], T], show: Callable[[T], object]) -> PlainHandler:
    """Return a handler that answers with `show` of what `create` creates: once for each idempotency key. `create` makes
    one transaction and returns its outcome, with which the answer is recorded."""

    @wraps(create)
    def answer(call: RouteCall) -> Response:
        key = idempotency_key(call)
        if key is None:
            return json_response(show(create(call)))
        text = answer_once(
            call.platform,
            KeyedRequest(call.principal, key, _digest(call)),
            lambda platform: create(attrs.evolve(call, platform=platform)),
            lambda created: dump(show(created)).decode("ascii"),
        )
        return Response(200, [JSON_HEADER], text.encode("ascii"))

    return answer


def _digest(call: RouteCall) -> str:
    body = call.body
    if call.data is not None:
        body = hashlib.file_digest(cast(BytesIO, call.file), "sha256").hexdigest()
        call.file.seek(0)
    query = {name: list(values) for name, values in call.query.items()}
    return digest([call.request.method, call.request.raw_path, query, body])
