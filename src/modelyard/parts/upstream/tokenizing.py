"""Tokens of prompts from another server: the routes `/tokenize` and `/detokenize` of vLLM, SGLang and modelyard, which
are next to the base path of the format.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from modelyard.domain.completion import CompletionRequest
from modelyard.errors import BackendError, InvalidInput, UnsupportedParameter
from modelyard.flow import run
from modelyard.parts.request_objects import request_object
from modelyard.parts.upstream.adapters.calls import Server, ServerAnswer
from modelyard.parts.upstream.address import Address
from modelyard.parts.upstream.answers.envelopes import enclosed
from modelyard.parts.upstream.answers.values import count_of, list_of, object_of, read_json, whole_characters

BASES = ("/inference/v1", "/v1")
"""How base paths of the format may end. The routes are not below these."""

_IDS = ("tokens", "token_ids", "ids", "input_ids")
"""Members with the ids of a text. An id may stand in an object with its text, as of llama.cpp."""
_TEXTS = ("prompt", "text", "content")
"""Members with the text of ids: of vLLM, of SGLang, and of llama.cpp."""
_REFUSED = frozenset({400, 413, 422})


@attrs.frozen
class TokenizerRoutes:
    """The routes of a server for tokens. Each call makes a connection, and is not tried again."""

    address: Address
    timeout: float

    def tokens(self, request: CompletionRequest, name: str) -> tuple[int, ...]:
        """Return the tokens of a request's prompt or messages for the model that the server calls by this name.

        Raises `InvalidInput`, `UnsupportedParameter` if the server has no such route, and `BackendError`.
        """
        if isinstance(request.prompt, tuple):
            return request.prompt
        answer = self._call("/tokenize", {"model": name, **_body_of(request)}, "prompt")
        given = _member(answer, _IDS, "/tokenize")
        ids = [count_of(object_of(one).get("id") if isinstance(one, Mapping) else one) for one in list_of(given)]
        if not isinstance(given, list) or None in ids:
            raise _malformed("/tokenize", "tokens: must be a list of token ids")
        return tuple(one for one in ids if one is not None)

    def text(self, ids: Sequence[int], name: str) -> str:
        """Return the text of tokens. Raises as `tokens`."""
        answer = self._call("/detokenize", {"model": name, "tokens": list(ids)}, "tokens")
        given = _member(answer, _TEXTS, "/detokenize")
        if not isinstance(given, str):
            raise _malformed("/detokenize", "prompt: must be a string")
        return whole_characters(given)

    def _call(self, path: str, body: Mapping[str, Any], at: str) -> Mapping[str, Any]:
        answer: ServerAnswer = run(_flow(Server(self._root, self.timeout), path, body))
        if answer.status == 404:
            raise UnsupportedParameter.at(
                "model", msg=f"its server has no route {path}, so its tokens are not known here"
            )
        if answer.status in _REFUSED:
            raise InvalidInput.at(at, msg="is refused by the model's server")
        if not 200 <= answer.status < 300:
            raise BackendError(f"the upstream server answered {path} with {answer.status}")
        try:
            return object_of(read_json(answer.body))
        except InvalidInput as wrong:
            raise _malformed(path, str(wrong)) from wrong

    @property
    def _root(self) -> Address:
        url, mark, query = self.address.url.partition("?")
        for base in BASES:
            if url.endswith(base):
                return Address(url.removesuffix(base) + mark + query, self.address.api_key)
        return self.address


def _member(answer: Mapping[str, Any], names: Sequence[str], path: str) -> Any:
    """Return the first of these members that an answer has, perhaps within an envelope. Raises `BackendError`."""
    for owner in (answer, *enclosed(answer, frozenset(names))):
        for name in names:
            if owner.get(name) is not None:
                return owner[name]
    raise _malformed(path, f"{names[0]}: is required")


def _malformed(path: str, why: str) -> BackendError:
    return BackendError(f"the upstream server's answer to {path} is malformed: {why}")


def _flow(server: Server, path: str, body: Mapping[str, Any]) -> Any:
    return (yield server.call("POST", path, body))


def _body_of(request: CompletionRequest) -> Mapping[str, Any]:
    added = request.extras.get("add_special_tokens")
    special = {} if added is None else {"add_special_tokens": added}
    if request.prompt is not None:
        return {"prompt": request.prompt, **special}
    whole = request_object(request, "", None, ())
    return {**{name: whole[name] for name in ("messages", "tools") if name in whole}, **special}
