"""One row of an evaluation: calling the model, with retries, then the scorers. Written once as flows, for every pool. A
failure of a row is a result. A failure of the platform below, such as a closed store, is raised and ends the run."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import copy_context
from decimal import Decimal
from functools import partial
from inspect import iscoroutinefunction, signature
from typing import Any, ClassVar, Protocol

import attrs

from modelyard.clock import backoff
from modelyard.domain.evaluation.objects import ObjectRef
from modelyard.domain.evaluation.scorers import Unscored, checked_score
from modelyard.domain.frozen_fast import quick_init
from modelyard.domain.record import EMPTY, truncate_for_storage
from modelyard.domain.usage import LedgerEntry, add
from modelyard.errors import BackendError, InvalidInput, ModelyardError, Overloaded, RateLimited, StoreError
from modelyard.flow import Await, Call, CallerDisconnected, Flow
from modelyard.formats.json import as_json
from modelyard.lazy import asyncio
from modelyard.platform.chat.booked_request import BOOKED
from modelyard.protocols import Clock

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 60.0


@quick_init
@attrs.frozen(weakref_slot=False)
class Reply:
    output: Any
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost: Decimal | None = None


class ModelUnderTest(Protocol):
    @property
    def ref(self) -> ObjectRef: ...

    @property
    def price(self) -> Mapping[str, Any]:
        """USD per token, request or image, as plain decimal text; empty if it is unknown or free."""
        ...

    @property
    def checkpoint_step(self) -> int | None: ...

    @property
    def seeded(self) -> bool: ...

    def reply(self, row: Mapping[str, Any], seed: int) -> Flow[Reply]: ...


@quick_init
@attrs.frozen(weakref_slot=False)
class ScoreResult:
    """The result of a scorer. `scored` is False if it failed; `reason` is why, or why a value is None. `comment` is
    what it says of its value."""

    value: Any = None
    reason: str = ""
    scored: bool = True
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost: Decimal | None = None
    comment: str = ""


class RowScorer(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def ref(self) -> ObjectRef: ...

    def score(self, output: Any, row: Mapping[str, Any]) -> Flow[ScoreResult]:
        """Score an output. May raise anything."""
        ...


# ---- calling the model -------------------------------------------------------------------------------------------


@attrs.frozen
class Retries:
    """How often a call is repeated after a temporary failure; each pause is twice as long."""

    times: int
    clock: Clock

    def pauses(self) -> Iterator[float]:
        for number in range(self.times):
            yield backoff(number, FIRST_PAUSE, LONGEST_PAUSE)


@quick_init
@attrs.frozen(weakref_slot=False)
class ModelCall:
    """The outcome of calling the model: a reply, or the `error` of the last of so many `attempts`. `latency` is that of
    the last attempt, in seconds."""

    reply: Reply | None
    error: str | None
    attempts: int
    latency: float | None


def call_with_retries(model: ModelUnderTest, row: Mapping[str, Any], seed: int, retries: Retries) -> Flow[ModelCall]:
    clock, pauses, attempts = retries.clock, retries.pauses(), 0
    while True:
        attempts += 1
        begun = clock.monotonic()
        try:
            reply = yield from model.reply(row, seed)
            output = storable(reply.output)
            if output is not reply.output:
                reply = attrs.evolve(reply, output=output)
            return ModelCall(reply, None, attempts, max(0.0, clock.monotonic() - begun))
        except (CallerDisconnected, StoreError):
            raise
        except Exception as error:  # noqa: BLE001 - the model's failure is the row's result
            pause = next(pauses, None) if _may_pass(error) else None
            if pause is None:
                return ModelCall(None, error_text(error), attempts, max(0.0, clock.monotonic() - begun))
            seconds = max(pause, getattr(error, "retry_after", None) or 0.0)
            yield Await(partial(clock.asleep, seconds), partial(clock.sleep, seconds))


def _may_pass(error: Exception) -> bool:
    """Return whether the same call may succeed later, as is assumed of any error of a caller's function."""
    return not isinstance(error, ModelyardError) or isinstance(error, BackendError | Overloaded | RateLimited)


def storable(value: Any) -> Any:
    """Return an output as JSON data. Raises `ValueError` or `InvalidInput` for one that no store could keep."""
    if type(value) is str:
        if not value.isascii():
            value.encode()
    elif type(value) is not bool:
        return as_json(value, at=("output",))
    return value


def error_text(error: Exception) -> str:
    """Return a failure as it is stored with the row: our own by their code, others by their class; bounded."""
    kind = error.code if isinstance(error, ModelyardError) else type(error).__name__
    return truncate_for_storage(f"{kind}: {error}")


# ---- scoring -------------------------------------------------------------------------------------------------------


def score_row(scorers: tuple[RowScorer, ...], output: Any, row: Mapping[str, Any]) -> Flow[tuple[ScoreResult, ...]]:
    results = []
    for scorer in scorers:
        try:
            found = yield from scorer.score(output, row)
        except (CallerDisconnected, StoreError):
            raise
        except Unscored as why:
            found = ScoreResult(None, truncate_for_storage(str(why)))
        except Exception as error:  # noqa: BLE001 - the scorer's failure is the row's result
            found = ScoreResult(None, error_text(error), scored=False)
        results.append(found)
    return tuple(results)


def to_score_result(value: Any) -> ScoreResult:
    kept, reason = checked_score(value)
    return ScoreResult(storable(kept), truncate_for_storage(reason) if reason else "")


def missing_field(missing: KeyError) -> InvalidInput:
    return InvalidInput.at("row", str(missing.args[0]), msg="is missing, and the scorer reads it")


# ---- functions of the caller's -------------------------------------------------------------------------------------


def call_function(function: Callable[..., Any], awaited: bool, *arguments: Any) -> Flow[Reply]:
    """Call a function. Its usage is that of what it asks this platform, also in tasks and threads with its context."""
    booked: list[LedgerEntry] = []
    if awaited:

        async def noted() -> Any:
            outside = BOOKED.set(booked)
            try:
                return await function(*arguments)
            finally:
                BOOKED.reset(outside)

        output = yield Await(noted, lambda: _alone(noted()))
    else:
        output = yield Call(lambda: copy_context().run(_noted, booked, function, arguments))
    return _with_usage(output, booked)


def _noted(booked: list[LedgerEntry], function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    BOOKED.set(booked)
    return function(*arguments)


def _with_usage(output: Any, booked: Sequence[LedgerEntry]) -> Reply:
    if not booked:
        return Reply(output)
    prompt, completion = (sum(getattr(one, name) for one in booked) for name in ("prompt_tokens", "completion_tokens"))
    return Reply(output, prompt, completion, add(one.cost for one in booked))


def check_signature(function: Any, arguments: Sequence[str], *loc: str) -> None:
    expected = f"must be a function of {' and '.join(arguments)}"
    if not callable(function):
        raise InvalidInput.at(*loc, msg=expected)
    try:
        known = signature(function)
    except (TypeError, ValueError):  # such as a built-in one, of which nothing is known
        return
    try:
        known.bind(*arguments)
    except TypeError as wrong:
        raise InvalidInput.at(*loc, msg=f"{expected}: {wrong}") from None


def is_async(function: Any) -> bool:
    return iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - whether it is async matters, not whether it is callable


def _alone(awaitable: Awaitable[Any]) -> Any:
    async def awaited() -> Any:
        return await awaitable

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(awaited())


@attrs.frozen
class CallableModel:
    function: Callable[[Mapping[str, Any]], Any]
    ref: ObjectRef
    price: Mapping[str, Any] = EMPTY
    checkpoint_step: int | None = None
    seeded: ClassVar[bool] = False
    awaited: bool = attrs.field(init=False)

    @awaited.default
    def _is_async(self) -> bool:
        return is_async(self.function)

    def reply(self, row: Mapping[str, Any], seed: int) -> Flow[Reply]:
        return (yield from call_function(self.function, self.awaited, row))


@attrs.frozen
class CallableScorer:
    name: str
    ref: ObjectRef
    function: Callable[[Any, Mapping[str, Any]], Any]
    awaited: bool = attrs.field(init=False)

    @awaited.default
    def _is_async(self) -> bool:
        return is_async(self.function)

    def score(self, output: Any, row: Mapping[str, Any]) -> Flow[ScoreResult]:
        found = yield from call_function(self.function, self.awaited, output, row)
        result = to_score_result(found.output)
        if found.prompt_tokens is None:
            return result
        spent = (found.prompt_tokens, found.completion_tokens, found.cost)
        return ScoreResult(result.value, result.reason, True, *spent)


COMMITTED_TOGETHER = 64
"""When so many rows are finished, they are committed without waiting for more."""


@attrs.frozen
class RunLimits:
    """The limits of a run: `timeout` is that of a row, in seconds; None means none. `retries` are the model's,
    `judge_retries` those of models that score."""

    concurrency: int = 8
    scorer_concurrency: int = 1
    timeout: float | None = None
    retries: int = 0
    judge_retries: int = 0
    seed: int = 0

    @property
    def together(self) -> int:
        return COMMITTED_TOGETHER

    @property
    def uncommitted(self) -> int:
        return self.concurrency + COMMITTED_TOGETHER - 1
