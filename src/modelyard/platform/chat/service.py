"""`platform.chat`: completions, whole and streamed, and those that were stored (specification 2.2, 4.2, 4.3)."""

from collections.abc import Mapping
from functools import partial
from typing import Unpack

import attrs

from modelyard.domain import models, promotion
from modelyard.domain.completion import Completion, CompletionRequest, Delta, StoredCompletion
from modelyard.domain.identity import Attribution, Principal
from modelyard.domain.record import EMPTY, Order
from modelyard.errors import InvalidInput, NotFound
from modelyard.flow import Call, Flow, aiterate, arun, iterate, run
from modelyard.formats.chat import kept_fast
from modelyard.platform import lineage, paging
from modelyard.platform.catalogue.service import requested_name
from modelyard.platform.chat.backend_stream import CompletionResult
from modelyard.platform.chat.booked_request import RequestInProgress, report_unread
from modelyard.platform.chat.pipeline import CompletionPipeline
from modelyard.platform.chat.plan import known_plan, make_plan
from modelyard.platform.chat.request import ChatOptions, CompletionOptions, build_request
from modelyard.platform.chat.streams import AnswerStream, AsyncAnswerStream
from modelyard.platform.listing import Cursor, Listing
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx


class Chat:
    """Completions. Their usage is recorded for an entity and project of the principal.

    answer = platform.chat.complete(model="echo", messages="hello", max_tokens=20)
    answer.text, answer.usage.total_tokens

    Messages are a string, `Message` values, or dicts of the chat-completion format. The parameters are those of
    `ChatOptions`. A `CompletionRequest` may be given instead of keywords.
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    def complete(self, request: CompletionRequest | None = None, /, **options: Unpack[ChatOptions]) -> Completion:
        """Return the whole answer. Raises as `CompletionPipeline.flow` does."""
        return run(self._flow(request, options, streamed=False)).completion

    async def acomplete(
        self, request: CompletionRequest | None = None, /, **options: Unpack[ChatOptions]
    ) -> Completion:
        """Return the whole answer, without blocking the event loop."""
        return (await arun(self._flow(request, options, streamed=False))).completion

    def stream(self, request: CompletionRequest | None = None, /, **options: Unpack[ChatOptions]) -> "CompletionStream":
        """Stream the answer, once its first deltas are there. Raises as `complete` does."""
        return CompletionStream(iterate(self._flow(request, options, streamed=True)))

    def astream(
        self, request: CompletionRequest | None = None, /, **options: Unpack[ChatOptions]
    ) -> "AsyncCompletionStream":
        """Stream the answer on an event loop. To await the stream waits for its first deltas, and raises a refusal."""
        return AsyncCompletionStream(aiterate(self._flow(request, options, streamed=True)))

    @property
    def _kept(self) -> "kept_fast.KeptMembers":
        return self._runtime.cache.slot(kept_fast.KeptMembers)

    def _pipeline(
        self,
        request: CompletionRequest,
        attribution: Attribution,
        details: bool = False,
        client: RequestInProgress | None = None,
    ) -> Flow[CompletionResult]:
        return CompletionPipeline(self._runtime, self._principal, request, attribution, client).flow(details)

    def _count(self, request: CompletionRequest, attribution: Attribution) -> Flow[int]:
        """Return how many tokens a prompt has, without answering it.

        Raises as `CompletionPipeline.flow` does, and `InvalidInput` for a model whose answers alone report it.
        """
        runtime = self._runtime
        asked = runtime, self._principal, attribution, request.model
        make, threads = partial(make_plan, *asked), runtime.store_threads(attribution.entity)
        plan = known_plan(*asked) or (yield Call(make, runtime.store.blocking, threads))
        count = partial(plan.count, request, runtime.settings.strict_conversations)
        return (yield Call(count, plan.counts_in_thread, plan.served.threads))  # type: ignore[no-any-return]

    def list(
        self,
        *,
        entity: str | None = None,
        project: str | None = None,
        model: str | None = None,
        metadata: Mapping[str, str] = EMPTY,
        order: Order = "asc",
    ) -> Listing[StoredCompletion]:
        """List the completions stored on request (`store`), of an entity or one project. Raises `Forbidden`.

        `model`, as it was named in the request, and `metadata` keep those that have them.
        """
        entity = self._principal.entity if entity is None else entity
        self._principal.require(entity, project)
        paging.check_metadata(metadata)
        index, *where = paging.listed_index(entity, project)
        place = partial(self._place, index, entity)

        def wanted(stored: StoredCompletion) -> bool:
            named = model is None or stored.model == model
            return named and metadata.items() <= stored.metadata.items() and self._sees(stored)

        return paging.index_listing(
            self._runtime, StoredCompletion, index, *where, place=place, order=order, keep=wanted
        )

    def get(self, completion_id: str) -> StoredCompletion:
        """Return a completion stored on request. Raises `NotFound`."""
        return self._runtime.store.read(lambda snapshot: self._stored(completion_id, snapshot))

    def update(self, completion_id: str, *, metadata: Mapping[str, str]) -> StoredCompletion:
        """Replace the metadata of a stored completion. Raises `NotFound`."""

        def step(tx: Tx) -> StoredCompletion:
            stored = attrs.evolve(self._stored(completion_id, tx), metadata=metadata)
            tx.replace(stored)
            return stored

        return self._runtime.store.transact(step)

    def delete(self, completion_id: str) -> None:
        """Delete a stored completion. Its usage stays recorded. Raises `NotFound`."""
        self._runtime.store.transact(lambda tx: tx.remove(StoredCompletion, self._stored(completion_id, tx).id))

    def lineage(self, completion_id: str) -> "promotion.CompletionLineage":
        """Return what answered a stored completion, and at what price. Raises `NotFound`."""
        return self._runtime.store.read(
            lambda snapshot: lineage.completion_lineage(snapshot, self._principal, completion_id)
        )

    def _sees(self, kept: StoredCompletion) -> bool:
        projects = self._principal.scope.projects
        return projects is None or kept.project in projects

    def _stored(self, id: str, snapshot: Snapshot) -> StoredCompletion:
        kept = paging.get_or_none(snapshot, StoredCompletion, id)
        if kept is None or not self._principal.scope.covers(kept.entity, kept.project):
            raise NotFound("stored completion", id)
        return kept

    def _place(self, index: str, entity: str, id: str, snapshot: Snapshot) -> Cursor:
        kept = self._stored(id, snapshot)
        if kept.entity != entity:
            raise NotFound("stored completion", id)
        return paging.cursor_at(StoredCompletion, index, kept)

    def _flow(self, request: CompletionRequest | None, options: ChatOptions, streamed: bool) -> Flow[CompletionResult]:
        entity, project = options.pop("entity", None), options.pop("project", None)
        if request is None:
            named = options if type(options.get("model")) is str else self._named(options)
            try:
                request = build_request(named, streamed)
            except InvalidInput as wrong:
                report_unread(self._runtime, self._principal, wrong, named.get("model"), entity, project)
                raise
        elif options:
            raise TypeError("give a CompletionRequest or keywords, not both")
        elif request.streamed is not streamed:
            request = attrs.evolve(request, streamed=streamed)
        own = entity is None and project is None
        attribution = self._principal.own if own else self._principal.attribution(entity, project)
        return CompletionPipeline(self._runtime, self._principal, request, attribution).flow()

    def _named(self, options: CompletionOptions) -> CompletionOptions:
        """Put its name in the place of a model or checkpoint that is given as a value."""
        given = options.get("model")
        if isinstance(given, str) or not isinstance(given, models.Model | models.Checkpoint):
            return options
        return {**options, "model": requested_name(self._runtime, given)}


class CompletionStream(AnswerStream[Delta]):
    """The deltas of an answer. `completion` is set after the last one. Closing the stream early stops the work."""

    completion: Completion | None = None

    def _note(self, item: object) -> None:
        if type(item) is Completion:
            self.completion = item


class AsyncCompletionStream(AsyncAnswerStream[Delta]):
    """The deltas of an answer, on an event loop. See `CompletionStream`."""

    completion: Completion | None = None

    def _note(self, item: object) -> None:
        if type(item) is Completion:
            self.completion = item
