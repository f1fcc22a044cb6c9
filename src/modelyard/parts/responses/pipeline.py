"""One response: a chat completion. Its answer becomes items and events, and is kept in the booking's transaction."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import attrs

from modelyard.domain.completion import Completion, Message, Role, Usage
from modelyard.domain.identity import Attribution, Principal
from modelyard.errors import BudgetExceeded, ContextLengthExceeded, InvalidInput
from modelyard.flow import Emit, Flow
from modelyard.parts.places import moved
from modelyard.parts.responses.conversation import remove_expired
from modelyard.parts.responses.formats.request import ParsedResponse
from modelyard.parts.responses.formats.response import output_of, reason_of, usage_object
from modelyard.parts.responses.formats.stream import ResponseEvent, ResponseEvents
from modelyard.parts.responses.records import PREFIX, ModelResponse, ResponseStatus, item_id
from modelyard.platform.chat.assembly import ResponseAssembler
from modelyard.platform.chat.backend_stream import CompletionResult, StreamStarted
from modelyard.platform.chat.booked_request import RequestInProgress
from modelyard.platform.chat.pipeline import CompletionPipeline
from modelyard.platform.chat.plan import known_plan, make_plan
from modelyard.platform.owned import unless_deleted
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.platform.usage.booking import CompletionBooking
from modelyard.protocols import Tx

_PLACES: Mapping[str, str] = {
    "max_tokens": "max_output_tokens",
    "messages": "input...",
    "logprobs": "include",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "reasoning_effort": "reasoning.effort",
    "tool_choice.function": "tool_choice",
    "tools.*.function": "tools.*",
    "verbosity": "text.verbosity",
}
"""Where the parameters of a completion are in the request for a response."""


class ResponsePipeline(CompletionPipeline):
    """Answers one request for a response. A stream emits its `StreamStarted`, and then lists of its events.

    `response` is what is answered: first as it begins, at the end as it has ended. `queued` is a response that was
    requested in the background, and is already stored.
    """

    def __init__(
        self,
        runtime: Runtime,
        principal: Principal,
        parsed: ParsedResponse,
        messages: tuple[Message, ...],
        attribution: Attribution,
        client: RequestInProgress | None = None,
        queued: ModelResponse | None = None,
    ) -> None:
        request = attrs.evolve(
            parsed.request, messages=messages, streamed=parsed.request.streamed or queued is not None
        )
        super().__init__(runtime, principal, request, attribution, client)
        self._truncates, self._stores, self._queued = parsed.truncates, parsed.store, queued
        self.response: ModelResponse = self._begun(parsed) if queued is None else queued
        self._events = ResponseEvents(self.response, request.logprobs)
        self._last_items: list[ResponseEvent] = []

    def _begun(self, parsed: ParsedResponse) -> ModelResponse:
        made = PREFIX + self.id
        return ModelResponse(
            made,
            self.attribution.entity,
            self.attribution.project,
            self.given.model,
            self.runtime.clock.now(),
            ResponseStatus.IN_PROGRESS,
            tuple({**item, "id": item.get("id") or item_id("in", made, at)} for at, item in enumerate(parsed.raw)),
            parameters=parsed.given,
            metadata=parsed.request.metadata,
            previous_id=parsed.previous_id or "",
            completion_id=self.id,
        )

    def flow(self, details: bool = False) -> Flow[CompletionResult]:
        """Answer the request. Raises as `CompletionPipeline.flow`, with the places of this format."""
        try:
            result = yield from super().flow(details)
        except InvalidInput as wrong:
            raise placed(wrong) from None
        except BudgetExceeded as error:
            if error.param is None:
                raise
            raise BudgetExceeded(
                str(error).replace("max_tokens", "max_output_tokens", 1), "max_output_tokens"
            ) from None
        if self.given.streamed:
            yield Emit([*self._last_items, self._events.end(self.response)])
        return result

    @property
    def so_far(self) -> tuple[Mapping[str, Any], ...]:
        return self._events.so_far()

    def check(self) -> None:
        """Raise what the request would, before it is answered in the background. May wait."""
        self.plan = plan = known_plan(*self.asked) or make_plan(*self.asked)
        self.backend, self.served = plan.backend, plan.served
        try:
            self._prepare()
        except InvalidInput as wrong:
            raise placed(wrong) from None

    def failed(self, error: Mapping[str, Any]) -> list[ResponseEvent]:
        """Return the events that end the stream of a response that fails, for a reason with a `code`, a `message` and a
        `param`.
        """
        code, message = error["code"] or "server_error", error["message"]
        response = attrs.evolve(self.response, status=ResponseStatus.FAILED, error={"code": code, "message": message})
        return [self._events.error(error["code"], message, error["param"]), self._events.end(response)]

    # ---- before the backend answers

    def _prepare(self) -> None:
        try:
            super()._prepare()
        except ContextLengthExceeded:
            if not self._truncates or not self._truncate():
                raise

    def _truncate(self) -> bool:
        """Leave out as many of the oldest messages as needed, never instructions. Returns whether the rest fits."""
        messages = self.given.messages
        starts = [at for at, message in enumerate(messages) if at and message.role is Role.USER]
        low, high = 0, len(starts)
        while low < high:
            middle = (low + high) // 2
            if self._fits(starts[middle]):
                high = middle
            else:
                low = middle + 1
        return low < len(starts) and self._fits(starts[low])

    def _fits(self, start: int) -> bool:
        """Return whether the conversation fits from its message `start` on, and prepare it so."""
        whole, messages = self.given, self.given.messages
        kept = [one for one in messages[:start] if one.role in (Role.SYSTEM, Role.DEVELOPER)]
        self.given = attrs.evolve(whole, messages=(*kept, *messages[start:]))
        try:
            super()._prepare()
        except ContextLengthExceeded:
            return False
        else:
            return True
        finally:
            self.given = whole

    # ---- while it answers

    def _emit(self, assembler: ResponseAssembler) -> Flow[None]:
        shown, assembler.shown = assembler.shown, []
        events = [] if self.first_token is not None else self._events.begin()
        if self.first_token is None:
            self.first_token = self.runtime.clock.monotonic() - self.began
            yield Emit(StreamStarted(self.response.id, self.created, self.given.model, self.served.entry))
        yield Emit([*events, *self._events.of(shown)])

    # ---- when it has answered

    def whole_booking(self, completion: Completion) -> CompletionBooking:
        """Return what records the completion, and keeps the response."""
        self._ended(completion)
        return super().whole_booking(completion)

    def _booking(self, usage: Usage | None) -> CompletionBooking:
        booking = super()._booking(usage)
        if self._stores and self.response.ended:
            keep = self._store_new if self._queued is None else partial(end_response, self.response)
            booking.keep = unless_deleted(self.runtime, self.response.entity, self.arrived, keep)
        return booking

    def _store_new(self, tx: Tx) -> None:
        tx.add(self.response)
        remove_expired(self.runtime, tx, self.response.entity)

    def _ended(self, completion: Completion) -> None:
        (choice,), served = completion.choices, self.served
        if choice.logprobs is not None and not self.given.logprobs:  # they are kept, and were not requested
            choice = attrs.evolve(choice, logprobs=None)
        reason = reason_of(choice.finish_reason)
        if self.given.streamed:
            self._last_items = self._events.close(incomplete=bool(reason))
            output = tuple(self._events.output)
        else:
            output = output_of(choice, self.response.id)
        named = None if self.plan is None else self.plan.named
        if named is not None:
            self.response = attrs.evolve(self.response, parameters={**self.response.parameters, "model": named.name})
        self.response = attrs.evolve(
            self.response,
            status=ResponseStatus.INCOMPLETE if reason else ResponseStatus.COMPLETED,
            output=output,
            usage=usage_object(completion.usage),
            completed_at=self.runtime.clock.now(),
            reason=reason,
            completion_id=self.id,
            price=served.entry.pricing.of(completion.usage.prompt_tokens).texts,
            checkpoint_id=None if served.checkpoint is None else served.checkpoint.id,
        )


def end_response(ended: ModelResponse, tx: Tx) -> None:
    """Store the current state of a response in the background, unless it has ended already or was deleted."""
    known = get_or_none(tx, ModelResponse, ended.id)
    if known is not None and not known.ended:
        tx.replace(ended)


def placed(error: InvalidInput) -> InvalidInput:
    """Return what is wrong with a request, at the places that this format has for it."""
    return moved(error, _PLACES)
