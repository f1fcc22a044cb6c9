"""A cassette in use: which recording is next, and recording what is missing."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import attrs

from modelyard.clock import SystemClock
from modelyard.domain.catalogue import CatalogueEntry
from modelyard.domain.completion import CompletionRequest, Delta
from modelyard.errors import NoAnswerPrepared
from modelyard.parts.doubles.cassette.file import CassetteFile, Offer, Recording, Timed
from modelyard.parts.doubles.cassette.matching import Match, in_words
from modelyard.parts.doubles.cassette.redaction import Redactor, without_prompt_ids
from modelyard.parts.doubles.cassette.request_key import RequestKey, request_key
from modelyard.protocols import Clock, ServedModel

Mode = Literal["none", "new", "all"]
_DECIMALS = 4


class Player:
    """A cassette file and what was played of it. Thread-safe."""

    def __init__(self, file: CassetteFile, mode: Mode, match: Match, redactor: Redactor, clock: Clock | None) -> None:
        self.file: CassetteFile = file
        self.clock: Clock | None = clock
        self.mode = mode
        self._match, self._redactor = match, redactor
        self._keys = [match.key(recording.asked) for recording in file.recordings]
        self._prompts = {match.prompt_key(one.asked): one.prompt_tokens for one in file.recordings}
        self._played: set[int] = set()
        self.missed: list[str] = []
        self._listed: Sequence[CatalogueEntry] = ()
        self._lock = threading.Lock()

    def entries(self, real: Any) -> Sequence[CatalogueEntry]:
        if real is None:
            return tuple(offer.entry for offer in self.file.offers.values())
        entries: Sequence[CatalogueEntry] = real.entries()
        with self._lock:
            if entries != self._listed:
                self.file.offer({entry.id: Offer(entry, real.capabilities(entry.id)) for entry in entries})
                self._listed = entries
        return entries

    def prompt_tokens(self, request: CompletionRequest, model: ServedModel, real: Any) -> int | None:
        key = self._match.prompt_key(self._redacted(request_key(request, model.entry, None)))
        if self.mode != "all" and key in self._prompts:
            return self._prompts[key]
        counted: int | None = None if real is None else real.prompt_tokens(request, model)
        return counted

    def find(self, request: CompletionRequest, model: ServedModel, real: Any) -> "Recording | RecordingSession":
        prompt_tokens = self.prompt_tokens(request, model, real)
        plain = request_key(request, model.entry, prompt_tokens)
        asked = self._redacted(plain)
        step = None if model.checkpoint is None else model.checkpoint.step
        found = None if self.mode == "all" else self._next(self._match.key(asked), step)
        if found is not None:
            return found
        if real is None:
            self.missed.append(self._missing(asked, step))
            raise NoAnswerPrepared.at("messages", msg=self.missed[-1])
        return RecordingSession(self, request.n, Recording(asked, prompt_tokens, (), step), asked != plain)

    def keep(self, session: "RecordingSession", left_early: bool) -> None:
        deltas = self._redactor.deltas([timed.delta for timed in session.received])
        if session.secretive:
            deltas = [without_prompt_ids(delta) for delta in deltas]
        timed = tuple(Timed(one.at, delta) for one, delta in zip(session.received, deltas, strict=True))
        recording = attrs.evolve(session.recording, deltas=timed, left_early=left_early)
        with self._lock:
            self.file.add(recording)

    def replayed(self, recording: Recording) -> Iterator[tuple[float, Delta]]:
        """Yield each delta and the seconds to wait before it. Raises `NoAnswerPrepared` if the reader had
        disconnected."""
        began = self.clock.monotonic() if self.clock else 0.0
        for timed in recording.deltas:
            yield (max(0.0, timed.at - (self.clock.monotonic() - began)) if self.clock else 0.0), timed.delta
        if recording.left_early:
            gone = f"the recording in line {recording.line} ends here, because its reader disconnected; record it again"
            raise NoAnswerPrepared.at("messages", msg=gone)

    def _redacted(self, asked: RequestKey) -> RequestKey:
        redacted: RequestKey = self._redactor.value(asked)
        return redacted

    def _next(self, key: str, step: int | None) -> Recording | None:
        with self._lock:
            for at, recording in enumerate(self.file.recordings):
                if at not in self._played and self._keys[at] == key and recording.step == step:
                    self._played.add(at)
                    return recording
        return None

    def _missing(self, asked: RequestKey, step: int | None) -> str:
        recorded = [one for one in self.file.recordings if one.step == step]
        if not recorded:
            return f"{self.file.path} has no recording{'' if step is None else f' of step {step}'}; {_ADVICE}"
        times = [self._match.key(one.asked) for one in recorded].count(self._match.key(asked))
        if times:
            return f"{self.file.path} answers this request {times} times, and it is requested once more; {_ADVICE}"
        at, differing = self._match.nearest([one.asked for one in recorded], asked)
        near = f"the nearest, in line {recorded[at].line}, differs: {in_words(differing)}"
        return f"nothing in {self.file.path} answers this request; {near}; {_ADVICE}"


_ADVICE = "record it with mode='new' (pytest --yard-record=new), or compare less with ignore= or match="


class RecordingSession:
    def __init__(self, player: Player, choices: int, recording: Recording, secretive: bool) -> None:
        self.recording: Recording = recording
        self.secretive: bool = secretive
        self.received: list[Timed] = []
        self.held: list[Delta] = []
        self._player, self._open = player, choices
        self._clock = player.clock or SystemClock()
        self._began = self._clock.monotonic()

    def add(self, delta: Delta) -> bool:
        self.received.append(Timed(round(self._clock.monotonic() - self._began, _DECIMALS), delta))
        self._open -= delta.finish_reason is not None
        if self._open <= 0:
            self.held.append(delta)
        return self._open > 0

    def keep(self) -> None:
        self._player.keep(self, left_early=False)

    def keep_so_far(self) -> None:
        if self.received:
            self._player.keep(self, left_early=True)
