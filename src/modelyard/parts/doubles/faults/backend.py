"""A backend with answers that fail as scheduled."""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, cast

import attrs

from modelyard.backends.deltas import aone_by_one, one_by_one
from modelyard.domain.catalogue import CatalogueEntry
from modelyard.domain.completion import CompletionRequest, Delta
from modelyard.errors import BackendError
from modelyard.parts.doubles.faults.kinds import Disconnect, Malformed, Slow, Timeout
from modelyard.parts.doubles.faults.schedule import FaultPlan, Struck
from modelyard.platform.chat.assembly import first_tokens
from modelyard.platform.chat.backend_stream import backend_of
from modelyard.protocols import AsyncBackend, Backend, Capabilities, ServedModel

COMPLETION = "completion"

AnyBackend = Backend | AsyncBackend


def faulty_backend(plan: FaultPlan, inner: AnyBackend) -> AnyBackend:
    kinds = {(True, False): _Faulty, (False, True): _AsyncFaulty, (True, True): _BothFaulty}
    return cast(AnyBackend, kinds[hasattr(inner, "stream"), hasattr(inner, "astream")](plan, inner))


class _FaultyOffer:
    def __init__(self, plan: FaultPlan, inner: Any) -> None:
        self._plan, self._inner = plan, inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def backend_of(self, model: str) -> AnyBackend:
        found = backend_of(self._inner, model)
        return cast(AnyBackend, self) if found is self._inner else faulty_backend(self._plan, found)

    def entries(self) -> Sequence[CatalogueEntry]:
        entries: Sequence[CatalogueEntry] = self._inner.entries()
        return entries

    def capabilities(self, model: str) -> Capabilities:
        can: Capabilities = self._inner.capabilities(model)
        return can

    def prompt_tokens(self, request: CompletionRequest, model: ServedModel) -> int | None:
        counted: int | None = self._inner.prompt_tokens(request, model)
        return counted


class _Faulty(_FaultyOffer):
    @property
    def blocking(self) -> bool:
        return bool(self._inner.blocking) or self._plan.slow(COMPLETION)

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
        answer = _Answer(self._plan.struck(COMPLETION))
        deltas = one_by_one(self._inner.stream(request, model))
        try:
            while answer.left and (delta := next(deltas, None)) is not None:
                yield answer.passed(delta)
            if seconds := answer.disturbed():
                self._plan.clock.sleep(seconds)
            yield from answer.replacement()
            if answer.continues:
                yield from deltas
        finally:
            if hasattr(deltas, "close"):
                deltas.close()


class _AsyncFaulty(_FaultyOffer):
    async def astream(self, request: CompletionRequest, model: ServedModel) -> AsyncIterator[Delta]:
        answer = _Answer(self._plan.struck(COMPLETION))
        deltas = aone_by_one(self._inner.astream(request, model))
        try:
            while answer.left and (delta := await anext(deltas, None)) is not None:
                yield answer.passed(delta)
            if seconds := answer.disturbed():
                await self._plan.clock.asleep(seconds)
            for delta in answer.replacement():
                yield delta
            if answer.continues:
                async for delta in deltas:
                    yield delta
        finally:
            if hasattr(deltas, "aclose"):
                await deltas.aclose()


class _BothFaulty(_Faulty, _AsyncFaulty):
    """A backend that is both."""


class _Answer:
    """One answer, disturbed after a number of tokens; `left` of these are still to come. None means undisturbed."""

    def __init__(self, struck: Struck | None) -> None:
        self._struck, self._fault = struck, None if struck is None else struck.fault
        self.left = 0 if struck is None else struck.after

    @property
    def continues(self) -> bool:
        return self._fault is None or isinstance(self._fault, Slow | Malformed)

    def passed(self, delta: Delta) -> Delta:
        if delta.tokens > self.left and not self.continues:
            delta = attrs.evolve(first_tokens(delta, self.left), finish_reason=None, usage=None)
        self.left = max(0, self.left - delta.tokens)
        return delta

    def disturbed(self) -> float:
        if self._struck is None or self.left:
            self._fault = None
            return 0.0
        self._struck.record()
        return self._struck.seconds

    def replacement(self) -> Sequence[Delta]:
        if isinstance(self._fault, Exception):
            raise self._fault.with_traceback(None)
        if isinstance(self._fault, Timeout):
            raise BackendError(f"the model did not answer within {self._fault.seconds:g} seconds")
        if isinstance(self._fault, Disconnect):
            raise BackendError("the connection to the model was lost")
        return (cast(Delta, self._fault.chunk),) if isinstance(self._fault, Malformed) else ()
