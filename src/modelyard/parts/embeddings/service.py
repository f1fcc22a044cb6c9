"""`platform.embeddings`: vectors of texts; their dot products say how alike the texts are."""

from collections.abc import Sequence

from modelyard.domain.embedding import EmbeddingRequest, EmbeddingResult
from modelyard.domain.identity import Attribution, Principal
from modelyard.domain.models import Checkpoint, Model
from modelyard.errors import InvalidInput
from modelyard.flow import Flow, arun, run
from modelyard.parts.embeddings.formats import read_embeddings
from modelyard.parts.embeddings.pipeline import EmbeddingPipeline
from modelyard.platform.catalogue.service import requested_name
from modelyard.platform.chat.booked_request import RequestInProgress, report_unread
from modelyard.platform.runtime import Runtime

Inputs = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]
"""A text, texts, the token ids of one input, or those of several."""


class Embeddings:
    """Embeddings. Their usage is recorded for an entity and project of the principal.

    made = platform.embeddings.create(model="echo", input=["a cat", "the cat"])
    first, second = made.vectors
    sum(one * other for one, other in zip(first, second))  # how alike they are, at most 1
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    def create(
        self,
        *,
        model: str | Model | Checkpoint,
        input: Inputs,
        dimensions: int | None = None,
        user: str | None = None,
        entity: str | None = None,
        project: str | None = None,
    ) -> EmbeddingResult:
        """Return one vector for each input: up to 2,048, with 300,000 tokens in all.

        `dimensions` is how many numbers a vector shall have, if the model can make fewer than its own number. Raises as
        `EmbeddingPipeline.flow` does.
        """
        asked = self._read(model, input, dimensions, user, entity, project)
        return run(self._flow(asked, self._principal.attribution(entity, project)))

    async def acreate(
        self,
        *,
        model: str | Model | Checkpoint,
        input: Inputs,
        dimensions: int | None = None,
        user: str | None = None,
        entity: str | None = None,
        project: str | None = None,
    ) -> EmbeddingResult:
        """Return what `create` returns, without blocking the event loop."""
        asked = self._read(model, input, dimensions, user, entity, project)
        return await arun(self._flow(asked, self._principal.attribution(entity, project)))

    def _read(
        self,
        model: str | Model | Checkpoint,
        given: Inputs,
        dimensions: int | None,
        user: str | None,
        *whose: str | None,
    ) -> EmbeddingRequest:
        """Read the request as if a client had sent it."""
        name = model if isinstance(model, str) else requested_name(self._runtime, model)
        body = {"model": name, "input": _listed(given), "dimensions": dimensions, "user": user}
        try:
            return read_embeddings(body).request
        except InvalidInput as wrong:
            report_unread(self._runtime, self._principal, wrong, name, *whose)
            raise

    def _flow(
        self, request: EmbeddingRequest, attribution: Attribution, client: RequestInProgress | None = None
    ) -> Flow[EmbeddingResult]:
        return EmbeddingPipeline(self._runtime, self._principal, request, attribution, client).flow()


def _listed(given: object) -> object:
    """Convert other sequences to lists, as JSON has them."""
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        return given
    return [_listed(one) for one in given]
