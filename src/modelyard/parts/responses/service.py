"""`platform.compat.responses`: answers that the platform keeps, so that the next request can continue after one."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Unpack

from modelyard.domain.completion import Message
from modelyard.domain.identity import Attribution, Principal, check_idempotency_key
from modelyard.domain.job import Job
from modelyard.domain.promotion import CompletionLineage
from modelyard.domain.record import EMPTY, Order
from modelyard.domain.usage import LedgerEntry
from modelyard.errors import InvalidInput, NotFound
from modelyard.flow import Call, Flow, aiterate, arun, iterate, run
from modelyard.parts.responses.background import cancel_response, queue_response
from modelyard.parts.responses.conversation import Conversation, find_response, is_expired, with_instructions
from modelyard.parts.responses.follow import follow
from modelyard.parts.responses.formats.items import messages_of
from modelyard.parts.responses.formats.request import ParsedResponse
from modelyard.parts.responses.formats.stream import ResponseEvent
from modelyard.parts.responses.options import ResponseOptions, read_options
from modelyard.parts.responses.pipeline import ResponsePipeline
from modelyard.parts.responses.records import ModelResponse
from modelyard.platform.chat.booked_request import RequestInProgress, report_unread
from modelyard.platform.chat.streams import AnswerStream, AsyncAnswerStream
from modelyard.platform.jobs.queue import announce, request_cancel
from modelyard.platform.lineage import lineage_of
from modelyard.platform.listing import Cursor, Listing
from modelyard.platform.paging import check_metadata, cursor_at, get_or_none, index_listing, listed_index
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx


class Responses:
    """Responses. They are answered, limited and booked as completions are.

    first = platform.compat.responses.create(model="echo", input="hello", instructions="Answer briefly.")
    then = platform.compat.responses.create(model="echo", input="and then?", previous_response_id=first.id)
    then.text, then.calls, then.usage["total_tokens"]

    Input is a string, or dicts of the format's items. The parameters are those of `ResponseOptions`.
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    # ---- answer

    def create(self, *, idempotency_key: str | None = None, **options: Unpack[ResponseOptions]) -> ModelResponse:
        """Return the whole response; with `background` a queued response, which a worker answers.

        `idempotency_key` names a request in the background: sent again with it, it is the same response. Raises as
        `CompletionPipeline.flow` does.
        """
        return run(self._flow(self._read(options, False), self._place(options), idempotency_key))

    async def acreate(self, **options: Unpack[ResponseOptions]) -> ModelResponse:
        """Return the whole response, without blocking the event loop."""
        return await arun(self._flow(self._read(options, False), self._place(options)))

    def stream(self, **options: Unpack[ResponseOptions]) -> "ResponseStream":
        """Stream the events of a response, once the first are there. Raises as `create` does."""
        return ResponseStream(iterate(self._flow(self._read(options, True), self._place(options))))

    def astream(self, **options: Unpack[ResponseOptions]) -> "AsyncResponseStream":
        """Stream the events of a response on an event loop."""
        return AsyncResponseStream(aiterate(self._flow(self._read(options, True), self._place(options))))

    def follow(self, response_id: str, *, starting_after: int = -1) -> "ResponseStream":
        """Stream the events of a response in the background as a worker answers it, or again when it has ended.

        `starting_after` continues after the event of that number. Raises as `parts.responses.follow.follow` does.
        """
        return ResponseStream(iterate(self._followed(response_id, starting_after)))

    def afollow(self, response_id: str, *, starting_after: int = -1) -> "AsyncResponseStream":
        """Stream the events of a response in the background on an event loop. See `follow`."""
        return AsyncResponseStream(aiterate(self._followed(response_id, starting_after)))

    def _followed(self, response_id: str, after: int) -> Flow[None]:
        return follow(self._runtime, self._principal, response_id, after)

    def _read(self, options: ResponseOptions, streamed: bool) -> ParsedResponse:
        try:
            return read_options(options, streamed)
        except InvalidInput as wrong:
            place = options.get("entity"), options.get("project")
            report_unread(self._runtime, self._principal, wrong, options.get("model"), *place)
            raise

    def _place(self, options: ResponseOptions) -> Attribution:
        return self._principal.attribution(options.get("entity"), options.get("project"))

    def _flow(self, parsed: ParsedResponse, place: Attribution, key: str | None = None) -> Flow[ModelResponse]:
        if parsed.background:
            return (yield from self._queue(parsed, place, key))
        if key is not None:
            raise InvalidInput.at("idempotency_key", msg="needs background=True")
        pipeline = yield from self._pipeline(parsed, place)
        yield from pipeline.flow()
        return pipeline.response

    def _pipeline(
        self, parsed: ParsedResponse, place: Attribution, client: RequestInProgress | None = None
    ) -> Flow[ResponsePipeline]:
        """Return what answers a request, with the messages of the responses before it."""
        messages = yield from self._conversation(parsed)
        return ResponsePipeline(self._runtime, self._principal, parsed, messages, place, client)

    def _conversation(self, parsed: ParsedResponse) -> Flow[tuple[Message, ...]]:
        if not parsed.refers:
            return with_instructions(parsed, messages_of(parsed.items))
        return (yield self._call(partial(self._runtime.store.read, partial(self._messages, parsed))))  # type: ignore[no-any-return]

    def _messages(self, parsed: ParsedResponse, snapshot: Snapshot) -> tuple[Message, ...]:
        return Conversation(self._runtime, snapshot, self._principal).of_request(parsed)

    def _queue(
        self, parsed: ParsedResponse, place: Attribution, key: str | None, client: RequestInProgress | None = None
    ) -> Flow[ModelResponse]:
        began = self._runtime.clock.monotonic() if client is None else client.began
        asked = self._runtime, self._principal, parsed, place, began, check_idempotency_key(key)
        response: ModelResponse = yield self._call(partial(queue_response, *asked))
        return response

    def _call(self, function: Callable[[], Any]) -> Call:
        blocking = self._runtime.store.blocking
        return Call(function, blocking, self._runtime.store_threads(self._principal.entity))

    # ---- those that are stored

    def get(self, response_id: str) -> ModelResponse:
        """Return a response that is stored. Raises `NotFound`."""
        return self._runtime.store.read(
            lambda snapshot: find_response(self._runtime, snapshot, self._principal, response_id)
        )

    def messages(self, response_id: str) -> tuple[Message, ...]:
        """Return the conversation of a stored response as messages, its answer last and without instructions.

        Raises `NotFound`, `InvalidInput` if an earlier response is gone.
        """

        def query(snapshot: Snapshot) -> tuple[Message, ...]:
            response = find_response(self._runtime, snapshot, self._principal, response_id)
            return Conversation(self._runtime, snapshot, self._principal).of_response(response)

        return self._runtime.store.read(query)

    def lineage(self, response_id: str) -> CompletionLineage:
        """Return what answered a stored response, and at what price: its row of the ledger, and its checkpoint.

        Raises `NotFound`, also if it has no answer yet.
        """

        def query(snapshot: Snapshot) -> CompletionLineage:
            response = find_response(self._runtime, snapshot, self._principal, response_id)
            booked = get_or_none(snapshot, LedgerEntry, response.completion_id)
            if booked is None:
                raise NotFound("booked completion", response.completion_id)
            return lineage_of(snapshot, self._principal, booked, response)

        return self._runtime.store.read(query)

    def input_items(self, response_id: str) -> tuple[Mapping[str, Any], ...]:
        """Return the items of a stored response's own input, as they were sent, each with an id. Raises `NotFound`."""
        return self.get(response_id).input

    def list(
        self,
        *,
        entity: str | None = None,
        project: str | None = None,
        model: str | None = None,
        metadata: Mapping[str, str] = EMPTY,
        order: Order = "asc",
    ) -> Listing[ModelResponse]:
        """List the stored responses of an entity or one project. Raises `Forbidden`.

        `model`, as the request named it, and `metadata` keep the responses that have them.
        """
        entity = self._principal.entity if entity is None else entity
        self._principal.require(entity, project)
        check_metadata(metadata)
        index, *where = listed_index(entity, project)
        projects = self._principal.scope.projects

        def wanted(response: ModelResponse) -> bool:
            named = model is None or response.model == model
            seen = projects is None or response.project in projects
            return named and seen and metadata.items() <= response.metadata.items() and not self._is_expired(response)

        def place(id: str, snapshot: Snapshot) -> Cursor:
            found = find_response(self._runtime, snapshot, self._principal, id)
            if found.entity != entity:
                raise NotFound("response", id)
            return cursor_at(ModelResponse, index, found)

        return index_listing(self._runtime, ModelResponse, index, *where, place=place, order=order, keep=wanted)

    def _is_expired(self, response: ModelResponse) -> bool:
        return is_expired(self._runtime, response)

    def delete(self, response_id: str) -> None:
        """Delete a stored response; a response in the background is cancelled. Raises `NotFound`.

        Responses that continue it can no longer be continued.
        """
        event_id, now = self._runtime.ids(), self._runtime.clock.now()

        def step(tx: Tx) -> Job | None:
            found = find_response(self._runtime, tx, self._principal, response_id)
            tx.remove(ModelResponse, found.id)
            if found.ended:
                return None
            return request_cancel(tx, self._runtime.job_types, found.job_id, event_id, self._principal.name, now)

        job = self._runtime.store.transact(step)
        if job is not None and job.ended:
            announce(self._runtime, job)

    def cancel(self, response_id: str) -> ModelResponse:
        """Cancel a response that is answered in the background. A response that has ended stays as it is.

        Raises `NotFound`, and `InvalidInput` if it was not requested in the background.
        """
        response = self.get(response_id)
        if not response.job_id:
            raise InvalidInput.at("response_id", msg="names a response that was not requested with background: true")
        return cancel_response(self._runtime, self._principal, response)


class ResponseStream(AnswerStream[ResponseEvent]):
    """The events of a response; the last has the whole response. Closing the stream early stops the work."""


class AsyncResponseStream(AsyncAnswerStream[ResponseEvent]):
    """The events of a response, on an event loop. See `ResponseStream`."""
