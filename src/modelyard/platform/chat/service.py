"""`platform.chat`: completions, whole and streamed, and those that were stored (specification 2.2, 4.2, 4.3)."""

from collections.abc import AsyncGenerator, Generator, Iterator
from itertools import islice
from typing import Any, Self, Unpack

import attrs

from modelyard.domain import lineage as domain_lineage
from modelyard.domain.completion import Completion, CompletionRequest, Delta, StoredCompletion
from modelyard.domain.identity import Attribution, Principal
from modelyard.domain.paging import Order, Page, check_limit
from modelyard.errors import NotFound, RecordNotFound
from modelyard.flow import Flow, aiterate, arun, iterate, run
from modelyard.platform import lineage
from modelyard.platform.chat.pipeline import CompletionPipeline, CompletionResult
from modelyard.platform.chat.request import CompletionOptions, build_request
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot


class Chat:
    """Completions. Their usage is recorded for a team and project of the principal.

    answer = platform.chat.complete(model="echo", messages="hello", max_tokens=20)
    answer.text, answer.usage.total_tokens

    Messages are a string, `Message` values, or dicts of the chat-completion format. The parameters are those of
    `CompletionOptions`. A `CompletionRequest` may be given instead of keywords.
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    def complete(
        self,
        request: CompletionRequest | None = None,
        /,
        *,
        team: str | None = None,
        project: str | None = None,
        **options: Unpack[CompletionOptions],
    ) -> Completion:
        """Return the whole answer. Raises as `CompletionPipeline.flow` does."""
        return run(self._flow(request, team, project, options, streamed=False)).completion

    async def acomplete(
        self,
        request: CompletionRequest | None = None,
        /,
        *,
        team: str | None = None,
        project: str | None = None,
        **options: Unpack[CompletionOptions],
    ) -> Completion:
        """Return the whole answer, without blocking the event loop."""
        return (await arun(self._flow(request, team, project, options, streamed=False))).completion

    def stream(
        self,
        request: CompletionRequest | None = None,
        /,
        *,
        team: str | None = None,
        project: str | None = None,
        **options: Unpack[CompletionOptions],
    ) -> "CompletionStream":
        """Stream the answer. The first `next` sends the request, and raises what `complete` would."""
        return CompletionStream(iterate(self._flow(request, team, project, options, streamed=True)))

    def astream(
        self,
        request: CompletionRequest | None = None,
        /,
        *,
        team: str | None = None,
        project: str | None = None,
        **options: Unpack[CompletionOptions],
    ) -> "AsyncCompletionStream":
        """Stream the answer on an event loop."""
        return AsyncCompletionStream(aiterate(self._flow(request, team, project, options, streamed=True)))

    def _pipeline(
        self, request: CompletionRequest, attribution: Attribution, *, details: bool = False
    ) -> Flow[CompletionResult]:
        return CompletionPipeline(self._runtime, self._principal, request, attribution, details).flow()

    def completions(
        self,
        *,
        team: str | None = None,
        project: str | None = None,
        after: str | None = None,
        limit: int = 20,
        order: Order = "asc",
    ) -> Page[StoredCompletion]:
        """Return the completions that were stored (`store=True`), of one project or of the whole team.

        Raises `Forbidden`, `NotFound` for an unknown `after`.
        """
        team = self._principal.entity if team is None else team
        self._principal.require(team, project)
        check_limit(limit)

        def query(snapshot: Snapshot) -> list[StoredCompletion]:
            cursor = None if after is None else self._cursor(snapshot, team, after)
            stored = _stored(snapshot, (team, project), cursor, order == "desc")
            return list(islice(filter(self._sees, stored), limit + 1))

        return Page.cut(self._runtime.store.read(query), limit)

    def lineage(self, completion_id: str) -> "domain_lineage.CompletionLineage":
        """Return what answered a stored completion, and at what price. Raises `NotFound`."""
        return self._runtime.store.read(
            lambda snapshot: lineage.completion_lineage(snapshot, self._principal, completion_id)
        )

    def _sees(self, kept: StoredCompletion) -> bool:
        projects = self._principal.scope.projects
        return projects is None or kept.project in projects

    def _cursor(self, snapshot: Snapshot, team: str, id: str) -> tuple[object, ...]:
        try:
            kept = snapshot.get(StoredCompletion, id)
        except RecordNotFound:
            raise NotFound("stored completion", id) from None
        if kept.entity != team or not self._sees(kept):
            raise NotFound("stored completion", id)
        return (kept.created_at, kept.id)

    def _flow(
        self,
        request: CompletionRequest | None,
        team: str | None,
        project: str | None,
        options: CompletionOptions,
        streamed: bool,
    ) -> Flow[CompletionResult]:
        if request is None:
            request = build_request(options, streamed)
        elif options:
            raise TypeError("give a CompletionRequest or keywords, not both")
        elif request.streamed is not streamed:
            request = attrs.evolve(request, streamed=streamed)
        return self._pipeline(request, self._principal.attribution(team, project))


class CompletionStream:
    """The deltas of an answer. `completion` is set after the last one. Closing the stream early stops the work."""

    def __init__(self, items: Generator[Any, None, None]) -> None:
        self._items = items
        self.completion: Completion | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delta:
        for item in self._items:
            if type(item) is Delta:
                return item
            if type(item) is Completion:
                self.completion = item
        raise StopIteration

    def close(self) -> None:
        """Stop, and record the usage of what was produced."""
        self._items.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncCompletionStream:
    """The deltas of an answer, on an event loop. See `CompletionStream`."""

    def __init__(self, items: AsyncGenerator[Any, None]) -> None:
        self._items = items
        self.completion: Completion | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        async for item in self._items:
            if type(item) is Delta:
                return item
            if type(item) is Completion:
                self.completion = item
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Stop, and record the usage of what was produced."""
        await self._items.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


# ---- stored completions --------------------------------------------------------------------------------------------

_BATCH = 200


def _stored(
    snapshot: Snapshot, place: tuple[str, str | None], after: tuple[object, ...] | None, descending: bool
) -> Iterator[StoredCompletion]:
    team, project = place
    index, where = ("by_entity", (team,)) if project is None else ("by_project", (team, project))
    while page := snapshot.page(StoredCompletion, index, *where, after=after, limit=_BATCH, descending=descending):
        yield from page
        after = (page[-1].created_at, page[-1].id)
