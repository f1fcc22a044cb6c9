"""One request for embeddings to a server: the attempts and time limits of a completion, and one document as answer."""

from typing import Any, ClassVar

import attrs

from modelyard.domain.embedding import EmbeddingRequest
from modelyard.errors import ContextLengthExceeded
from modelyard.flow import Emit, Flow
from modelyard.parts.embeddings.formats import embeddings_request, read_answer
from modelyard.parts.upstream.answers.envelopes import enclosed
from modelyard.parts.upstream.answers.values import object_of
from modelyard.parts.upstream.errors import Head
from modelyard.parts.upstream.exchange import MAX_ANSWER, Attempts, Transport, Upstream
from modelyard.parts.upstream.models import UpstreamModel
from modelyard.protocols import ServedModel

_HELD = frozenset({"data"})


class EmbeddingExchange(Attempts):
    """One request and its attempts. The answer is one batch of all inputs."""

    path: ClassVar[str] = "/embeddings"

    def __init__(
        self,
        upstream: Upstream,
        transport: Transport,
        upstream_model: UpstreamModel,
        request: EmbeddingRequest,
        model: ServedModel,
    ) -> None:
        super().__init__(upstream, transport, upstream_model, model)
        self._request = request

    def flow(self) -> Flow[None]:
        """Emit the answer. Raises what `modelyard.protocols.Embedder` allows."""
        try:
            yield from super().flow()
        except ContextLengthExceeded as error:
            raise ContextLengthExceeded([attrs.evolve(one, loc=("input",)) for one in error.problems]) from None

    def _body(self, name: str) -> bytes:
        size, asked = self._upstream_model.capabilities.embedding_size, self._request.dimensions
        return embeddings_request(self._request, name, None if asked == size else asked)

    def _answer(self, head: Head) -> Flow[None]:
        """Emit the whole answer. Its numbers may be written as digits or in base64."""
        value = self._json((yield from self._whole(MAX_ANSWER)))
        batch = read_answer(_opened(value), len(self._request.inputs))
        self._begun = True
        yield Emit(batch)


def _opened(value: Any) -> Any:
    """Return the object that has the list of embeddings, of what stands around it with the usage."""
    answer = object_of(value)
    if isinstance(answer.get("data"), list):
        return value
    within = (_opened({**one, "usage": one.get("usage") or answer.get("usage")}) for one in enclosed(answer, _HELD))
    return next((found for found in within if isinstance(object_of(found).get("data"), list)), value)
