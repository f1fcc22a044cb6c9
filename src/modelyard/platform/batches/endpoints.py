"""What a line of a batch may ask for: a row for each address."""

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from modelyard.domain.identity import Attribution, Principal
from modelyard.errors import InvalidInput
from modelyard.flow import run
from modelyard.formats.chat.request import read_request
from modelyard.formats.chat.response import completion_json
from modelyard.formats.embeddings import embeddings_json, read_embeddings
from modelyard.platform.chat.pipeline import CompletionPipeline
from modelyard.platform.embeddings.pipeline import EmbeddingPipeline
from modelyard.platform.runtime import Runtime


@attrs.frozen
class Asked:
    """The body of one line, and in whose name it is answered."""

    runtime: Runtime
    principal: Principal
    attribution: Attribution
    body: Mapping[str, Any]


@attrs.frozen
class LineAnswer:
    """The answer to one line: its id, and its body as the interface of the address would send it."""

    id: str
    body: bytes


def _chat(asked: Asked) -> LineAnswer:
    parsed = read_request(asked.body)
    if parsed.request.streamed:
        raise InvalidInput.at("stream", msg="must be false: a batch answers whole")
    flow = CompletionPipeline(asked.runtime, asked.principal, parsed.request, asked.attribution).flow()
    completion = run(flow).completion
    return LineAnswer(completion.id, completion_json(completion, parsed.with_logprobs, parsed.with_ids))


def _embed(asked: Asked) -> LineAnswer:
    parsed = read_embeddings(asked.body)
    made = run(EmbeddingPipeline(asked.runtime, asked.principal, parsed.request, asked.attribution).flow())
    return LineAnswer(made.id, embeddings_json(made, parsed.in_base64))


ENDPOINTS: Mapping[str, Callable[[Asked], LineAnswer]] = {
    "/v1/chat/completions": _chat,
    "/v1/embeddings": _embed,
}
"""What answers a line, by its `url`. Raises as the interface of the address does."""
