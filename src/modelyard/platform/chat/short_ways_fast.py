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
from modelyard.platform.chat import assembly
from modelyard.platform.chat.backend_stream import BackendStream, BegunDeltas, close_deltas
from modelyard.platform.chat.delta_checks import validate_delta
from modelyard.platform.chat.running_completion import RunningCompletion
from modelyard.protocols import Deltas

_completion, _choice, _message, _usage = maker(Completion), maker(Choice), maker(Message), maker(Usage)
_NOTHING = ()  # no deltas
_ASSISTANT = Role.ASSISTANT  # a constant is read in a twentieth of the time


class ShortWays:
    """Each way returns a finished completion, or None: then the general way goes on, from what has `begun`."""

    def __init__(self, of: RunningCompletion) -> None:
        self._of = of
        self._first: list[Any] = []
        self._rest: list[Any] = []

    def whole(self) -> Completion | None:
        """Return the completion if a backend that never waits gives all of each plain choice at once."""
        of = self._of
        request, tokens = of.request, of.prompt_tokens
        if request.streamed or tokens is None:
            return None
        assert of.plan is not None
        if of.plan.waits or (request.n > 1 and (of.makes_choices or request.logprobs or request.return_token_ids)):
            return None
        if request.n > 1:
            choices = self._choices()
            if choices is None:
                return None
            produced = of.at_once
        else:
            if not (self._first or self._asks(0)):
                return None
            delta = self._first[0]
            if not is_whole(delta, of.max_tokens) or (request.stop and any(one in delta.text for one in request.stop)):
                return None
            if hasattr(self._rest[0], "close"):
                self._close(0)
            choices = (self._choice_of(0, delta),)
            produced = delta.tokens
        of.answered_at = now = of.runtime.clock.now()
        usage = _usage(tokens, produced, 0, of.images)
        return _completion(of.id, unix_seconds(now), of.given.model, choices, usage)

    def _choices(self) -> tuple[Choice, ...] | None:
        """Return several choices, if each of them is whole."""
        of, length, stop, most = self._of, 0, self._of.request.stop, self._of.max_tokens
        choices: list[Choice] = []
        for index in range(of.request.n):
            if index == len(self._first) and not self._asks(index):
                return None
            delta = self._first[index]
            if not is_whole(delta, most) or (stop and any(one in delta.text for one in stop)):
                return None
            if hasattr(self._rest[index], "close"):
                self._close(index)
            choices.append(self._choice_of(index, delta))
            of.at_once = delta.tokens if index == 0 else of.at_once + delta.tokens
            length += len(delta.text)
            if length > assembly.MAX_TEXT:
                return None
        return tuple(choices)

    def _choice_of(self, index: int, delta: Delta) -> Choice:
        if (logprobs := self._of.request.logprobs) or delta.token_ids or delta.prompt_token_ids:
            return assembly.fold_choice(index, [delta], logprobs)
        return _choice(index, _message(_ASSISTANT, delta.text), delta.finish_reason or FinishReason.STOP)

    def _asks(self, index: int) -> bool:
        """Ask the backend for the first delta of a choice. Returns False for a request that was cut off before."""
        of = self._of
        if of.cut_by is not None:
            return False
        request = of.request if of.request.n == 1 else assembly.choice_of(of.request, index)
        rest: Any = None
        try:
            rest = iter(of.backend.stream(request, of.served))
            first = next(rest, _NOTHING)
        except Exception as error:  # noqa: BLE001 - it is kept
            first = _Raised(error)
        self._first.append(first)
        self._rest.append(rest)
        return True

    def begun(self, index: int) -> BackendStream | None:
        """Return what the backend has begun to give of a choice, to be read from its beginning, once."""
        self._of.at_once = 0
        if index >= len(self._first):
            return None
        rest, self._rest[index], first = self._rest[index], None, self._first[index]
        read = _failing(first.error) if type(first) is _Raised else chain((first,), rest or ())
        return BackendStream(False, None, deltas=BegunDeltas(read, rest))

    def close(self) -> None:
        """Close what the backend has begun, unless the general way has it."""
        for index in range(len(self._rest)):
            self._close(index)

    def _close(self, index: int) -> None:
        rest, self._rest[index] = self._rest[index], None
        close_deltas(rest)

    # ---- where it is answered before its budgets are asked

    def admitted(self) -> Flow[Completion | None]:
        """Answer, then admit and record in one transaction.

        After None, the request goes on as one that has reserved nothing: what was answered is neither seen nor paid.
        """
        of = self._of
        longest = of.cost_with(of.max_tokens)
        if of.request.n > 1 or not self._affordable(longest):
            return None
        completion, cache, store = self.whole(), of.runtime.cache, of.runtime.store
        if completion is None and of.cut_by is None:
            return None
        if completion is None or cache.running.pop(of.id, None) is None:
            raise of.cut_by or StoreClosed("this platform was closed while the request ran")
        booking = of.whole_booking(completion).after_answer(longest, of.principal.purse)
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


class _Raised:
    """What a backend raised in the place of its first delta; it is raised where the rest is read."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _failing(error: Exception) -> Iterator[Deltas]:
    """Return an iterator that raises this."""

    def fail() -> Deltas:
        raise error

    return iter(fail, None)


def is_whole(delta: Any, most: int) -> bool:
    """Return whether this is all of a plain answer: text that ends, of at most `most` tokens, counted, of few details.

    What is wrong with any other is for a `ResponseAssembler` to say.
    """
    return (
        type(delta) is Delta
        and type(delta.finish_reason) is FinishReason
        and type(text := delta.text) is str
        and type(tokens := delta.tokens) is int
        and 0 < tokens <= most
        and len(text) <= assembly.MAX_TEXT
        and (text.isascii() or is_unicode(text))
        and type(delta.index) is int
        and delta.index == 0
        and delta.tool_call is None
        and delta.usage is None
        and delta.stop_string is None
        and not (delta.prompt_logprobs or delta.reasoning)
        and (not (delta.logprobs or delta.token_ids or delta.prompt_token_ids) or _is_detailed(delta))
    )


def _is_detailed(delta: Delta) -> bool:
    """Return whether all details of a delta are as they should be, and too few for others to have their turn."""
    try:
        validate_delta(delta, 1)
    except Exception:  # noqa: BLE001 - the general way finds it again, and reports it
        return False
    return delta.tokens < assembly.UNINTERRUPTED
