"""Tokens of prompts from another server: the routes `/tokenize` and `/detokenize` of vLLM, SGLang and modelyard, which
are next to the base path of the format.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from modelyard.domain.completion import CompletionRequest
from modelyard.errors import BackendError, InvalidInput, UnsupportedParameter
from modelyard.flow import run
from modelyard.formats.chat.request import request_object
from modelyard.formats.json import loads
from modelyard.parts.embeddings.fields import each, mapping, natural, required, text
from modelyard.parts.upstream.adapters.calls import Server, ServerAnswer
from modelyard.parts.upstream.address import Address

BASES = ("/inference/v1", "/v1")
"""How base paths of the format may end. The routes are not below these."""

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
        return required(lambda ids: each(natural, ids), answer, "tokens")

    def text(self, ids: Sequence[int], name: str) -> str:
        """Return the text of tokens. Raises as `tokens`."""
        return required(text, self._call("/detokenize", {"model": name, "tokens": list(ids)}, "tokens"), "prompt")

    def _call(self, path: str, body: Mapping[str, Any], at: str) -> Mapping[str, Any]:
        answer: ServerAnswer = run(_flow(Server(self._root, self.timeout), path, body))
        if answer.status == 404:
            raise UnsupportedParameter.at(
                "model", msg=f"its server has no route {path}, so its tokens are not known here"
            )
        if answer.status in _REFUSED:
            raise InvalidInput.at(at, msg="is refused by the model's server")
        if answer.status != 200:
            raise BackendError(f"the upstream server answered {path} with {answer.status}")
        try:
            return mapping(loads(answer.body, at=("answer",)))
        except InvalidInput as wrong:
            raise BackendError(f"the upstream server's answer to {path} is malformed: {wrong}") from wrong

    @property
    def _root(self) -> Address:
        url, mark, query = self.address.url.partition("?")
        for base in BASES:
            if url.endswith(base):
                return Address(url.removesuffix(base) + mark + query, self.address.api_key)
        return self.address


def _flow(server: Server, path: str, body: Mapping[str, Any]) -> Any:
    return (yield server.call("POST", path, body))


def _body_of(request: CompletionRequest) -> Mapping[str, Any]:
    added = request.extras.get("add_special_tokens")
    special = {} if added is None else {"add_special_tokens": added}
    if request.prompt is not None:
        return {"prompt": request.prompt, **special}
    whole = request_object(request, "", None, ())
    return {**{name: whole[name] for name in ("messages", "tools") if name in whole}, **special}
