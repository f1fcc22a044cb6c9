"""A reader may look between any two instructions of the thread that steps: what it reads is the same."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from local_models import GREEDY, engine_of, requested

from modelyard.domain.completion import CompletionRequest, Delta, FinishReason, Message, Role
from modelyard.errors import BackendError
from modelyard.parts.torch.serving.sequence import ChoiceStream, Sequence

WATCHED = ("serving/batching_engine.py", "serving/sequence.py", "serving/sampler.py")


class Reader:
    """One who reads a streamed answer along."""

    def __init__(self, sequence: Sequence) -> None:
        request = CompletionRequest("m", (Message(Role.USER, "x"),), streamed=True)
        self._speaker = ChoiceStream(0, sequence, request, [bytes([65 + n % 26]) for n in range(259)])
        self.received: list[Delta] = []
        self.failure: Exception | None = None

    def look(self) -> None:
        if self._speaker.ended:
            return
        try:
            self.received.extend(self._speaker.deltas())
        except Exception as fault:
            self.failure = self.failure or fault

    @property
    def reasons(self) -> list[FinishReason | None]:
        return [delta.finish_reason for delta in self.received]


@contextmanager
def looking(reader: Reader, every: int) -> Iterator[None]:
    """Have it look at each `every`th instruction of what this thread does in the engine."""
    before, count = sys.gettrace(), 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if event == "call":
            frame.f_trace_opcodes = frame.f_code.co_filename.endswith(WATCHED)
            return trace if frame.f_trace_opcodes else None
        count += 1
        if count % every == 0:
            reader.look()
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def read(folder: Path, sequence: Sequence, every: int = 1, ends: frozenset[int] = frozenset()) -> Reader:
    engine, reader = engine_of(folder, ends=ends), Reader(sequence)
    engine.submit(sequence)
    with looking(reader, every):
        engine.wait(sequence, sequence.max_tokens)
    reader.look()
    return reader


@pytest.mark.parametrize("every", [1, 7, 301])
def test_the_last_token_always_comes_with_the_reason(folder: Path, every: int) -> None:
    reader = read(folder, requested([5, 6, 7], 9), every)
    assert [delta.tokens for delta in reader.received] == [1] * 9
    assert reader.reasons == [None] * 8 + [FinishReason.LENGTH]


@pytest.mark.parametrize("every", [1, 7, 301])
def test_so_does_a_token_that_ends_the_answer(folder: Path, every: int) -> None:
    (third,) = read(folder, requested([5, 6, 7], 3))._speaker.sequence.answer[2:]
    reader = read(folder, requested([5, 6, 7], 9), every, frozenset({third}))
    assert reader.reasons == [None] * (len(reader.received) - 1) + [FinishReason.STOP]
    assert sum(delta.tokens for delta in reader.received) == len(reader.received)


class Failing:
    """A grammar that fails in one of its two ways after three tokens."""

    def __init__(self, way: str) -> None:
        self._way, self._taken = way, 0

    def allowed(self) -> bytes:
        if (self._way, self._taken) == ("allowed", 3):
            raise ValueError("the parser gave up")
        return b"\x01" * 259

    def accept(self, token: int) -> bool:
        if (self._way, self._taken) == ("accept", 3):
            raise ValueError("the parser gave up")
        self._taken += 1
        return False


@pytest.mark.parametrize("way", ["allowed", "accept"])
@pytest.mark.parametrize("every", [1, 7, 10**9])
def test_an_answer_that_fails_is_never_taken_for_a_complete_one(folder: Path, way: str, every: int) -> None:
    """Nor does the cause replace the failure, which says what to make of it."""
    reader = read(folder, requested([5, 6, 7], 9, GREEDY, grammar=Failing(way)), every)
    assert type(reader.failure) is BackendError
    assert reader.reasons == [None] * 3


def test_a_whole_answer_is_one_delta_at_its_end(folder: Path) -> None:
    sequence = requested([5, 6, 7], 4)
    reader = Reader(sequence)
    request = CompletionRequest("m", (Message(Role.USER, "x"),))
    reader._speaker = ChoiceStream(0, sequence, request, [b"a"] * 259)
    engine = engine_of(folder, ends=frozenset())
    engine.submit(sequence)
    with looking(reader, 1):
        engine.wait(sequence, 4)
    reader.look()
    assert [(delta.text, delta.finish_reason) for delta in reader.received] == [("aaaa", FinishReason.LENGTH)]
