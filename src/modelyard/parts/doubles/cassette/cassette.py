"""Record what a real backend answers, and replay it without the backend.

    backend = use_cassette("cassettes/support.jsonl", UpstreamBackend(...), mode="new")

The mode is the only switch: "none" replays and never uses the backend, "new" records what is missing, "all" records
everything again.
"""

import asyncio
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, get_args

from modelyard.backends.deltas import aone_by_one, one_by_one
from modelyard.domain.catalogue import CatalogueEntry
from modelyard.domain.completion import CompletionRequest, Delta
from modelyard.errors import InvalidInput, NotFound
from modelyard.parts.doubles.cassette.file import CassetteFile
from modelyard.parts.doubles.cassette.matching import Match
from modelyard.parts.doubles.cassette.player import Mode, Player, RecordingSession
from modelyard.parts.doubles.cassette.redaction import Redactor
from modelyard.protocols import AsyncBackend, Backend, Capabilities, Clock, ServedModel

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
    """Return a backend that answers from the cassette `path`, and in the modes "new" and "all" records `backend`.

    It is synchronous, asynchronous or both, as `backend` is; a cassette that is only replayed is both. A request is
    answered by the recordings that agree with it in everything that it asks for, in the order in which they were made,
    each once. `ignore` names fields that need not agree ("messages", "temperature", "max_tokens", ...); `match` returns
    the part of a request that must. Keys of well-known shapes, and matches of the strings and patterns `redact`, are
    never written. With a `clock` a replayed stream takes the time that the recorded one took; without one it takes
    none. Raises `NotFound` if there is no such cassette to replay, `InvalidInput`, and `StoreCorrupt` for an unreadable
    line. Answering raises `NoAnswerPrepared` if nothing is recorded, and what `backend` raises, which is not recorded.
    """
    if mode not in get_args(Mode):
        raise InvalidInput.at("mode", msg=f"must be 'none', 'new' or 'all', not {mode!r}")
    if mode != "none" and backend is None:
        raise InvalidInput.at("backend", msg=f"is needed to record: mode={mode!r}")
    player = Player(_cassette_file(Path(path), mode), mode, Match(match, ignore), Redactor(redact), clock)
    return _backend_for(player, None if mode == "none" else backend)


def _cassette_file(path: Path, mode: Mode) -> CassetteFile:
    if mode != "none":
        return CassetteFile.opened(path, truncate=mode == "all")
    try:
        return CassetteFile(path)
    except FileNotFoundError:
        hint = "record it once with mode='new', or by pytest --yard-record=new"
        raise NotFound("cassette", str(path), hint) from None


# ---- the backends ------------------------------------------------------------------------------------------------


class _CassetteBackend:
    def __init__(self, player: Player, real: Any) -> None:
        self._player, self._real = player, real

    @property
    def blocking(self) -> bool:
        return self._player.clock is not None or getattr(self._real, "blocking", False)

    @property
    def missed(self) -> Sequence[str]:
        """The words of the requests that nothing recorded answers."""
        return self._player.missed

    def backend_of(self, model: str) -> AnyBackend:
        inner = getattr(self._real, "backend_of", None)
        return _backend_for(self._player, self._real if inner is None else inner(model))

    def entries(self) -> Sequence[CatalogueEntry]:
        return self._player.entries(self._real)

    def capabilities(self, model: str) -> Capabilities:
        if self._real is None:
            return self._player.file.offers[model].capabilities
        can: Capabilities = self._real.capabilities(model)
        return can

    def prompt_tokens(self, request: CompletionRequest, model: ServedModel) -> int | None:
        return self._player.prompt_tokens(request, model, self._real)


class _Synchronous(_CassetteBackend):
    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
        found = self._player.find(request, model, self._real)
        if isinstance(found, RecordingSession):
            yield from _recorded(found, one_by_one(self._real.stream(request, model)))
            return
        for seconds, delta in self._player.replayed(found):
            if seconds and self._player.clock:
                self._player.clock.sleep(seconds)
            yield delta


class _Asynchronous(_CassetteBackend):
    async def astream(self, request: CompletionRequest, model: ServedModel) -> AsyncIterator[Delta]:
        found = self._player.find(request, model, self._real)
        if isinstance(found, RecordingSession):
            real = aone_by_one(self._real.astream(request, model))
            async with aclosing(_arecorded(found, real)) as deltas:
                async for delta in deltas:
                    yield delta
            return
        for seconds, delta in self._player.replayed(found):
            if seconds and self._player.clock:
                await self._player.clock.asleep(seconds)
            yield delta


class _Either(_Synchronous, _Asynchronous):
    """Replays and records both kinds of answers."""


def _backend_for(player: Player, real: Any) -> AnyBackend:
    if real is None or (hasattr(real, "stream") and hasattr(real, "astream")):
        return _Either(player, real)
    return _Synchronous(player, real) if hasattr(real, "stream") else _Asynchronous(player, real)


# ---- recording ---------------------------------------------------------------------------------------------------


def _recorded(session: RecordingSession, deltas: Iterator[Delta]) -> Iterator[Delta]:
    try:
        for delta in deltas:
            if session.add(delta):
                yield delta
    except GeneratorExit:
        session.keep_so_far()
        raise
    finally:
        getattr(deltas, "close", _nothing)()
    session.keep()
    yield from session.held


async def _arecorded(session: RecordingSession, deltas: AsyncIterator[Delta]) -> AsyncGenerator[Delta, None]:
    try:
        async for delta in deltas:
            if session.add(delta):
                yield delta
    except (GeneratorExit, asyncio.CancelledError):
        session.keep_so_far()
        raise
    finally:
        await getattr(deltas, "aclose", _anothing)()
    session.keep()
    for delta in session.held:
        yield delta


def _nothing() -> None:
    """Do nothing: an answer that was recorded has no `close`."""


async def _anothing() -> None:
    """Do nothing: what has no `aclose` needs none."""
