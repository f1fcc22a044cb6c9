"""The requests that a line of a batch may make: a row for each address."""

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from modelyard.domain.completion import CompletionRequest
from modelyard.domain.identity import Attribution, Principal
from modelyard.errors import InvalidInput
from modelyard.flow import run
from modelyard.formats.chat.request import read_request
from modelyard.formats.chat.response import completion_json
from modelyard.formats.converter import unstructure
from modelyard.formats.json import dumps
from modelyard.parts.completions.formats.request import read_body as read_prompts
from modelyard.parts.completions.formats.response import completion_json as prompts_json
from modelyard.parts.completions.formats.response import prompt_text
from modelyard.parts.completions.service import Completions
from modelyard.parts.embeddings.formats import embeddings_json, read_embeddings
from modelyard.parts.embeddings.pipeline import EmbeddingPipeline
from modelyard.parts.responses.formats.request import read_response_request
from modelyard.parts.responses.formats.response import response_object
from modelyard.parts.responses.service import Responses
from modelyard.platform.chat.pipeline import CompletionPipeline
from modelyard.platform.runtime import Runtime

WHOLE = "must be false: a batch answers whole"


@attrs.frozen
class Asked:
    """The body of one line, and for whom it is answered."""

    runtime: Runtime
    principal: Principal
    attribution: Attribution
    body: Mapping[str, Any]


@attrs.frozen
class LineAnswer:
    """The answer to one line: its id, and its body in the format of its address."""

    id: str
    body: bytes


def _chat(asked: Asked) -> LineAnswer:
    parsed = read_request(asked.body)
    if parsed.request.streamed:
        raise InvalidInput.at("stream", msg=WHOLE)
    flow = CompletionPipeline(asked.runtime, asked.principal, parsed.request, asked.attribution).flow()
    completion = run(flow).completion
    shown = parsed.with_logprobs, parsed.with_ids, parsed.as_ids, parsed.request.return_token_ids
    return LineAnswer(completion.id, completion_json(completion, *shown))


def _respond(asked: Asked) -> LineAnswer:
    parsed = read_response_request(asked.body)
    if parsed.background or parsed.request.streamed:
        raise InvalidInput.at("background" if parsed.background else "stream", msg=WHOLE)
    response = run(Responses(asked.runtime, asked.principal)._flow(parsed, asked.attribution))
    return LineAnswer(response.id, dumps(unstructure(response_object(response))))


def _continue(asked: Asked) -> LineAnswer:
    parsed, completions = read_prompts(asked.body), Completions(asked.runtime, asked.principal)
    if parsed.streamed:
        raise InvalidInput.at("stream", msg=WHOLE)
    answers = [run(completions._pipeline(request, asked.attribution)).completion for request in parsed.requests]
    texts = [_text(completions, request) for request in parsed.requests] if parsed.echo else []
    return LineAnswer(answers[0].id, prompts_json(answers, parsed, texts))


def _text(completions: Completions, request: CompletionRequest) -> str:
    prompt = request.prompt or ""
    raw = completions._token_bytes(request.model, prompt) if isinstance(prompt, tuple) else ()
    return prompt_text(prompt, raw)


def _embed(asked: Asked) -> LineAnswer:
    parsed = read_embeddings(asked.body)
    made = run(EmbeddingPipeline(asked.runtime, asked.principal, parsed.request, asked.attribution).flow())
    return LineAnswer(made.id, embeddings_json(made, parsed.in_base64))


ENDPOINTS: Mapping[str, Callable[[Asked], LineAnswer]] = {
    "/v1/chat/completions": _chat,
    "/v1/responses": _respond,
    "/v1/completions": _continue,
    "/v1/embeddings": _embed,
}
"""What answers a line, by its `url`. Raises as the interface of the address does."""
