"""Record what a real backend answers, and replay it without the backend.

    backend = use_cassette("cassettes/support.jsonl", UpstreamBackend(...), mode="new")

The mode is the one switch: "none" replays and never touches the backend, "new" records what is missing, "all" records
everything anew.
"""

import asyncio
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, get_args

from modelyard.domain.catalogue import CatalogueEntry
from modelyard.domain.completion import CompletionRequest, Delta
from modelyard.errors import InvalidInput, NotFound
from modelyard.protocols import AsyncBackend, Backend, Capabilities, Clock, ServedModel
from modelyard.testing.cassette.file import CassetteFile
from modelyard.testing.cassette.matching import Match
from modelyard.testing.cassette.player import Mode, Player, RecordingSession
from modelyard.testing.cassette.redaction import Redactor

AnyBackend = Backend | AsyncBackend


def use_cassette(
    path: str | os.PathLike[str],
    backend: AnyBackend | None = None,
    *,
    mode: Mode = "none",
    match: Callable[[CompletionRequest], object] | None = None,
    ignore: Collection[str] = (),
    redact: Iterable[str | re.Pattern[str]] = (),
    clock: Clock | None = None,
) -> AnyBackend:
    """A backend that answers from the cassette `path`, and in the modes "new" and "all" records what `backend` answers.

    It is synchronous, asynchronous or both, as `backend` is; a cassette that is only replayed is both. A request is
    answered by the recordings that agree with it in everything that it asks, in the order in which they were made, each
    once. `ignore` names fields that need not agree ("messages", "temperature", "max_tokens", ...); `match` makes of a
    request all that must. Keys of well-known shapes, and what the texts and patterns `redact` name, are never written
    down. With a `clock` a replayed stream takes the time that the recorded one took; without one it takes none.

    Raises `NotFound` when there is no such cassette to replay, `InvalidInput`, `StoreCorrupt` for one with a line that
    cannot be read. Answering raises `NoAnswerPrepared` where nothing is recorded, and what `backend` raises, which is
    not recorded.
    """
    if mode not in get_args(Mode):
        raise InvalidInput.at("mode", msg=f"must be 'none', 'new' or 'all', not {mode!r}")
    if mode != "none" and backend is None:
        raise InvalidInput.at("backend", msg=f"is needed to record: mode={mode!r}")
    deck = Player(_tape(Path(path), mode), mode, Match(match, ignore), Redactor(redact), clock)
    return _face(deck, None if mode == "none" else backend)


def _tape(path: Path, mode: Mode) -> CassetteFile:
    if mode != "none":
        return CassetteFile.opened(path, anew=mode == "all")
    try:
        return CassetteFile(path)
    except FileNotFoundError:
        hint = "record it once with mode='new', or by pytest --yard-record=new"
        raise NotFound("cassette", str(path), hint) from None


# ---- the backends ------------------------------------------------------------------------------------------------


class _Face:
    """What every kind of backend has. `real` is None where nothing is recorded."""

    def __init__(self, deck: Player, real: Any) -> None:
        self._deck, self._real = deck, real

    @property
    def blocking(self) -> bool:
        """As the real backend, and where a replay takes its time."""
        return self._deck.clock is not None or getattr(self._real, "blocking", False)

    def backend_of(self, model: str) -> AnyBackend:
        """The recorder of the backend that answers for this model."""
        inner = getattr(self._real, "backend_of", None)
        return _face(self._deck, self._real if inner is None else inner(model))

    def entries(self) -> Sequence[CatalogueEntry]:
        """What the real backend offers, or offered."""
        return self._deck.entries(self._real)

    def capabilities(self, model: str) -> Capabilities:
        """What the real backend can do with the model, or could."""
        if self._real is None:
            return self._deck.tape.offers[model].capabilities
        can: Capabilities = self._real.capabilities(model)
        return can

    def prompt_tokens(self, request: CompletionRequest, model: ServedModel) -> int | None:
        """As recorded, else as the real backend counts them."""
        return self._deck.prompt_tokens(request, model, self._real)


class _Synchronous(_Face):
    """Replays and records `stream`."""

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
        """Answer."""
        found = self._deck.find(request, model, self._real)
        if isinstance(found, RecordingSession):
            yield from _recorded(found, self._real.stream(request, model))
            return
        for seconds, delta in self._deck.replayed(found):
            if seconds and self._deck.clock:
                self._deck.clock.sleep(seconds)
            yield delta


class _Asynchronous(_Face):
    """Replays and records `astream`."""

    async def astream(self, request: CompletionRequest, model: ServedModel) -> AsyncIterator[Delta]:
        """Answer."""
        found = self._deck.find(request, model, self._real)
        if isinstance(found, RecordingSession):
            async with aclosing(_arecorded(found, self._real.astream(request, model))) as deltas:
                async for delta in deltas:
                    yield delta
            return
        for seconds, delta in self._deck.replayed(found):
            if seconds and self._deck.clock:
                await self._deck.clock.asleep(seconds)
            yield delta


class _Either(_Synchronous, _Asynchronous):
    """Replays and records both."""


def _face(deck: Player, real: Any) -> AnyBackend:
    if real is None or (hasattr(real, "stream") and hasattr(real, "astream")):
        return _Either(deck, real)
    return _Synchronous(deck, real) if hasattr(real, "stream") else _Asynchronous(deck, real)


# ---- recording ---------------------------------------------------------------------------------------------------


def _recorded(take: RecordingSession, deltas: Iterator[Delta]) -> Iterator[Delta]:
    try:
        for delta in deltas:
            if take.add(delta):
                yield delta
    except GeneratorExit:
        take.keep_so_far()
        raise
    finally:
        getattr(deltas, "close", _nothing)()
    take.keep()
    yield from take.held


async def _arecorded(take: RecordingSession, deltas: AsyncIterator[Delta]) -> AsyncGenerator[Delta, None]:
    try:
        async for delta in deltas:
            if take.add(delta):
                yield delta
    except (GeneratorExit, asyncio.CancelledError):
        take.keep_so_far()
        raise
    finally:
        await getattr(deltas, "aclose", _anothing)()
    take.keep()
    for delta in take.held:
        yield delta


def _nothing() -> None:
    """How to close what cannot be closed."""


async def _anothing() -> None:
    """How to close what cannot be closed."""
