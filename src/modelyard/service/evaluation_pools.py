"""Where the model and the scorers of a run work: in place, on threads, or on an event loop."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from modelyard.service.engine import Limits
from modelyard.service.engine_pool import InPlace, Pool, Tasks, Threads, own_loop
from modelyard.service.engine_row import RowScorer, Subject
from modelyard.service.flow import Book
from modelyard.service.judging import JudgeScorer, PlatformModel
from modelyard.service.scorers import RuleScorer


def pools(
    opened: ExitStack,
    limits: Limits,
    subject: Subject | None,
    scorers: Sequence[RowScorer],
    loop: Any,
    owed: list[Book],
) -> tuple[Pool, Pool]:
    """The pools of the model and of the scorers, as long as `opened` lasts; on `loop` where there is one.

    What is booked by those that never wait is added to `owed`.
    """
    if loop is None and any(map(_needs_loop, (subject, *scorers))):
        loop = opened.enter_context(own_loop())
    if loop is not None:
        tasks = Tasks(loop)
        opened.callback(tasks.close)
        return tasks, tasks

    def pool(size: int, blocking: bool) -> Pool:
        if limits.timeout is None and (size == 1 or not blocking):
            return InPlace(None if blocking else owed)
        threads = Threads()
        opened.callback(threads.close)
        return threads

    return pool(limits.concurrency, _waits(subject)), pool(limits.scorer_concurrency, any(map(_waits, scorers)))


def _needs_loop(worker: object) -> bool:
    if isinstance(worker, PlatformModel):
        return worker.looped
    if isinstance(worker, JudgeScorer):
        return worker.model.looped
    return getattr(worker, "awaited", False)


def _waits(worker: object) -> bool:
    """Whether what asks or scores may wait, so that others should be asked meanwhile."""
    if isinstance(worker, JudgeScorer):
        worker = worker.model
    return worker.blocking if isinstance(worker, PlatformModel) else not isinstance(worker, RuleScorer | None)
