"""Runs that are steered: a model that counts what it is asked, a process that dies, and what must hold in the end."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from modelyard import Platform
from modelyard.backends.echo import EchoBackend
from modelyard.domain.completion import CompletionRequest
from modelyard.errors import BackendError
from modelyard.protocols import Deltas, ServedModel
from modelyard.testing.clock import ManualClock

ROWS = [{"prompt": f"say {at}", "expected": f"say {at}"} for at in range(12)]
MORE = [{"prompt": f"more {at}", "expected": "no"} for at in range(4)]


def submitted(platform: Platform, rows: Any = ROWS, **options: Any) -> str:
    return platform.evaluations.submit("quiz", "echo", rows, "exact_match", retries=0, **options).id


def finish(platform: Platform) -> None:
    platform.worker().run_until_idle()


def rows_of(platform: Platform, run_id: str) -> list[tuple[int, int]]:
    return sorted((row.index, row.trial) for row in platform.evaluations.result(run_id).rows)


def whole(platform: Platform, run_id: str, rows: int, trials: int = 1) -> None:
    """Check that a run has completed with each row once, and that its summary is that of its rows."""
    run = platform.evaluations.runs.get(run_id)
    assert run.state == "completed", run.reason
    assert rows_of(platform, run_id) == [(at, trial) for at in range(rows) for trial in range(trials)]
    report = platform.evaluations.report(run)
    assert run.summary is not None
    assert run.summary["trials"] == rows * trials
    scores = [row.score for row in platform.evaluations.result(run_id).rows if row.score is not None]
    assert run.summary["scored"] == len(scores)
    assert run.summary["mean"] == pytest.approx(sum(scores) / len(scores))
    assert str(report)
    status = platform.evaluations.runs.status(run_id)
    assert (status.completed_rows, status.total_rows) == (rows * trials, rows * trials)


def while_it_runs(backend: Any, clock: ManualClock, do: Any, text: str = "say 3") -> None:
    """Do something once, when a row is asked; and let the worker look for it after each commit."""

    def asked(prompt: str) -> None:
        clock.advance(10)
        if prompt == text:
            backend.on_asked = lambda _: clock.advance(10)
            do()

    backend.on_asked = asked


class Counting(EchoBackend):
    """Echoes, counts how often each prompt is asked, and fails those that are `broken`."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.broken = Counter[str](), set[str]()
        self.on_asked: Callable[[str], object] = lambda text: None

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Deltas]:
        """Answer a request."""
        text = str(request.messages[-1].content)
        self.asked[text] += 1
        self.on_asked(text)
        if text in self.broken:
            raise BackendError("it is away")
        yield from super().stream(request, model)


class Killed(BaseException):
    """The process has died."""


class Dying:
    """A store of a process that dies before its commit of the number `left`, or right after it."""

    def __init__(self, store: Any) -> None:
        self.store, self.left, self.after, self.dead = store, -1, False, False

    def transact(self, step: Any, *more: Any, **options: Any) -> Any:
        """Commit a step, or die."""
        if self.dead:
            raise Killed
        self.left -= 1
        self.dead = self.left == 0
        if self.dead and not self.after:
            raise Killed
        made = self.store.transact(step, *more, **options)
        if self.dead:
            raise Killed
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)
