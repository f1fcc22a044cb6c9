"""Answer at once what comes at once: without it, a completion over HTTP takes 21 % more instructions.

A completion of a backend that never waits, which gives all of a plain answer as its first delta, needs nothing of what
assembles, cuts and shows an answer in parts. Where a budget applies, such an answer is admitted and booked in one
transaction, in the place of one that reserves and one that books.
"""

from collections.abc import Iterator
from decimal import Decimal
from itertools import chain
from typing import Any

from modelyard.clock import unix_seconds
from modelyard.domain.completion import Choice, Completion, Delta, FinishReason, Message, Role, Usage
from modelyard.domain.frozen_fast import maker
from modelyard.errors import StoreClosed
from modelyard.flow import Flow, Transact
from modelyard.formats.chat.bounds import is_unicode
from modelyard.platform.chat.assembly import MAX_TEXT
from modelyard.platform.chat.backend_stream import BackendStream, BegunDeltas, close_deltas
from modelyard.platform.chat.running_completion import RunningCompletion
from modelyard.protocols import Deltas

_completion, _choice, _message, _usage = maker(Completion), maker(Choice), maker(Message), maker(Usage)
_NOTHING = ()  # no deltas
_ASSISTANT = Role.ASSISTANT  # a constant is read in a twentieth of the time


class ShortWays:
    """Each way returns a finished completion, or None: then the general way goes on, from what has `begun`."""

    _asked = False
    _first: Any = _NOTHING
    _rest: Iterator[Deltas] | None = None
    _failure: Exception | None = None

    def __init__(self, of: RunningCompletion) -> None:
        self._of = of

    def whole(self) -> Completion | None:
        """Return the completion if a backend that never waits gives all of a plain one at once."""
        of = self._of
        request, tokens = of.request, of.prompt_tokens
        if request.n > 1 or request.streamed or request.stop or request.logprobs or tokens is None:
            return None
        assert of.plan is not None
        if of.plan.waits or not (self._asked or self._asks()):
            return None
        delta = self._first
        if not is_whole(delta, of.max_tokens):
            return None
        if hasattr(self._rest, "close"):
            self.close()
        of.answered_at = now = of.runtime.clock.now()
        choice = _choice(0, _message(_ASSISTANT, delta.text), delta.finish_reason)
        usage = _usage(tokens, delta.tokens, 0, of.images)
        return _completion(of.id, unix_seconds(now), of.given.model, (choice,), usage)

    def _asks(self) -> bool:
        """Ask the backend for its first delta. Returns False for a request that was cut off before."""
        of = self._of
        if of.cut_by is not None:
            return False
        self._asked = True
        try:
            self._rest = rest = iter(of.backend.stream(of.request, of.served))
            self._first = next(rest, _NOTHING)
        except Exception as error:  # noqa: BLE001 - it is raised where the rest is read
            self._failure = error
        return True

    @property
    def begun(self) -> BackendStream | None:
        """What the backend has begun to give, to be read from its beginning, once."""
        if not self._asked:
            return None
        rest, self._rest = self._rest, None
        read = chain((self._first,), rest or ()) if self._failure is None else _failing(self._failure)
        return BackendStream(False, None, deltas=BegunDeltas(read, rest))

    def close(self) -> None:
        """Close what the backend has begun, unless the general way has it."""
        rest, self._rest = self._rest, None
        close_deltas(rest)

    # ---- where it is answered before its budgets are asked

    def admitted(self) -> Flow[Completion | None]:
        """Answer, then admit and record in one transaction.

        After None, the request goes on as one that has reserved nothing: what was answered is neither seen nor paid.
        """
        of = self._of
        longest = of.cost_with(of.max_tokens)
        if not self._affordable(longest):
            return None
        completion, cache, store = self.whole(), of.runtime.cache, of.runtime.store
        if completion is None and of.cut_by is None:
            return None
        if completion is None or cache.running.pop(of.id, None) is None:
            raise of.cut_by or StoreClosed("this platform was closed while the request ran")
        booking = of.whole_booking(completion).after_answer(longest)
        if of.span is not None:
            of.span.record()
        if store.blocking:
            yield Transact(store, of.step_of(booking), durable=booking.durable)
        else:
            store.transact(booking.step, durable=booking.durable)
        if not booking.admitted:
            cache.begin(of.id, of)
            return None
        of.whole = True
        booking.report()
        return completion

    def _affordable(self, longest: Decimal) -> bool:
        """Return whether the budgets had what the request may cost when this process last saw them."""
        assert self._of.plan is not None
        seen = self._of.runtime.cache.budgets
        for id_ in self._of.plan.budgets:  # noqa: SIM110 - a generator would cost as much as the sums
            if id_ not in seen or longest > seen[id_].remaining:
                return False
        return True


def _failing(error: Exception) -> Iterator[Deltas]:
    """Return an iterator that raises this."""

    def fail() -> Deltas:
        raise error

    return iter(fail, None)


def is_whole(delta: Any, most: int) -> bool:
    """Return whether this is all of a plain answer: text that ends, of at most `most` tokens, counted, not detailed.

    What is wrong with any other is for a `ResponseAssembler` to say.
    """
    return (
        type(delta) is Delta
        and type(delta.finish_reason) is FinishReason
        and type(delta.text) is str
        and type(delta.tokens) is int
        and 0 < delta.tokens <= most
        and len(delta.text) <= MAX_TEXT
        and (delta.text.isascii() or is_unicode(delta.text))
        and type(delta.index) is int
        and delta.index == 0
        and delta.tool_call is None
        and delta.usage is None
        and delta.stop_string is None
        and not (
            delta.logprobs or delta.token_ids or delta.prompt_token_ids or delta.prompt_logprobs or delta.reasoning
        )
    )
