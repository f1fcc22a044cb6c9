"""One request for embeddings to a server: the attempts and time limits of a completion, and one document as answer."""

from typing import ClassVar

import attrs

from modelyard.domain.embedding import EmbeddingRequest
from modelyard.errors import ContextLengthExceeded, InvalidInput
from modelyard.flow import Emit, Flow
from modelyard.parts.embeddings.batches import with_spent
from modelyard.parts.embeddings.formats import embeddings_request
from modelyard.parts.upstream.answers.embeddings import counted_tokens, read_answer
from modelyard.parts.upstream.answers.values import read_again, read_json
from modelyard.parts.upstream.errors import Head, RetryableError
from modelyard.parts.upstream.exchange import MAX_ANSWER, Attempts, Transport, Upstream
from modelyard.parts.upstream.models import UpstreamModel
from modelyard.protocols import ServedModel


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
        self._counted: int | None = None

    def flow(self) -> Flow[None]:
        """Emit the answer. Raises what `modelyard.protocols.Embedder` allows."""
        try:
            yield from super().flow()
        except ContextLengthExceeded as error:
            moved = ContextLengthExceeded([attrs.evolve(one, loc=("input",)) for one in error.problems])
            raise with_spent(moved, self._counted) from None

    def _body(self, name: str) -> bytes:
        asked = self._request.dimensions
        own = self._upstream_model.capabilities.embedding_size
        return embeddings_request(self._request, name, None if asked == own else asked)

    @property
    def _size(self) -> int:
        """The numbers of each embedding."""
        return self._request.dimensions or self._upstream_model.capabilities.embedding_size

    def _answer(self, head: Head) -> Flow[None]:
        """Emit the whole answer. Its numbers may be written as digits or in base64."""
        value = read_again(read_json((yield from self._whole(MAX_ANSWER))))
        self._counted = counted_tokens(value)
        try:
            batch = read_answer(value, len(self._request.inputs), self._size)
        except InvalidInput:
            self._failed(value)
            raise
        self._begun = True
        yield Emit(batch)

    def _spent(self, failure: RetryableError) -> Flow[None]:
        """Note on the error what an answer that cannot be used says of its cost."""
        if not self._begun:
            with_spent(failure.error, self._counted)
        yield from ()
