"""One request to continue a prompt on a server: what is sent in the place of messages, and how its answer is read."""

from typing import ClassVar

import attrs

from modelyard.domain.completion import CompletionRequest
from modelyard.formats.json import dumps
from modelyard.parts.completions.formats.request import prompt_object
from modelyard.parts.upstream.answers.prompts import PromptAnswerReader
from modelyard.parts.upstream.answers.reader import AnswerReader
from modelyard.parts.upstream.exchange import Exchange, Transport, Upstream, note
from modelyard.parts.upstream.models import UpstreamModel
from modelyard.protocols import ServedModel


class PromptExchange(Exchange):
    """One request for the completion of a prompt, its attempts, and the deltas of its answer."""

    path: ClassVar[str] = "/completions"

    def __init__(
        self,
        upstream: Upstream,
        transport: Transport,
        upstream_model: UpstreamModel,
        request: CompletionRequest,
        model: ServedModel,
    ) -> None:
        if request.prompt_logprobs is not None:  # vLLM has them in no stream
            request = attrs.evolve(request, streamed=False)
        super().__init__(upstream, transport, upstream_model, request, model)

    def _body(self, name: str) -> bytes:
        return dumps(prompt_object(self._request, name, self._most(), self._upstream_model.capabilities.parameters))

    def _most(self) -> int:
        """Return how many tokens to ask for: servers take a missing number for 16, and refuse none."""
        given, wanted = self._request.prompt, self._request.max_tokens
        room = self._model.entry.context_length - (len(given) if isinstance(given, tuple) else 1)
        return max(1, room if wanted is None else min(wanted, room))

    def _new_reader(self) -> AnswerReader:
        return PromptAnswerReader(self._request, note)
