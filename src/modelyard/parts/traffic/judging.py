"""Scores of answers: from feedback or a function, or from a judge, which is asked about several at a time."""

import threading
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

import attrs

from modelyard.domain.completion import Role
from modelyard.domain.evaluation.scorers import LlmJudge, Unscored
from modelyard.domain.identity import Principal
from modelyard.errors import BackendError, InvalidInput, Overloaded, RateLimited
from modelyard.parts.traffic.selection import Selection, number_of
from modelyard.parts.traffic.traffic_row import StoredAnswer, TrafficRow
from modelyard.platform.chat.service import Chat
from modelyard.platform.evaluations.row_evaluation import Retries
from modelyard.platform.runtime import Runtime

CONCURRENCY = 16
"""How many answers are judged at the same time."""

RETRIES = 4
"""How often a judge that fails for now is asked again. A rate limit is waited for however long it takes."""


@attrs.frozen
class ChosenAnswer:
    """A stored answer: its chosen rows, why others are left out, and the score of each chosen row."""

    stored: StoredAnswer
    rows: tuple[TrafficRow, ...]
    missed: tuple[str, ...]
    values: tuple[float | None, ...] = ()


def with_scores(selection: Selection, answers: Iterator[ChosenAnswer]) -> Generator[ChosenAnswer | None, None, None]:
    """Yield the answers with the scores of their rows, from feedback or a function."""
    for answer in answers:
        scored = selection.score is not None
        yield attrs.evolve(answer, values=tuple(selection.value_of(row) if scored else None for row in answer.rows))


class Judging:
    """Asks a judge about answers, in threads."""

    def __init__(self, runtime: Runtime, principal: Principal, judge: LlmJudge, place: tuple[str, str]) -> None:
        """Judge for a principal; its cost is recorded for the entity and the project of `place`."""
        self._runtime, self._chat, self._judge, self._place = runtime, Chat(runtime, principal), judge, place
        self._stopping = False

    def with_scores(self, answers: Iterator[ChosenAnswer]) -> Generator[ChosenAnswer | None, None, None]:
        """Yield the answers in their order, with the scores of their rows; None while it waits for the next.

        Closing it waits for the questions that were begun. Raises as the completion of a judge does.
        """
        threads, waiting = ThreadPoolExecutor(CONCURRENCY, "modelyard-judge"), deque[Future[ChosenAnswer]]()
        try:
            while True:
                more = islice(answers, CONCURRENCY - len(waiting))
                waiting.extend(threads.submit(self._judge_rows, answer) for answer in more)
                if not waiting:
                    return
                while not self._is_done(waiting[0]):
                    yield None
                yield waiting.popleft().result()
        finally:
            self._stopping = True
            threads.shutdown(cancel_futures=True)

    def _is_done(self, future: Future[ChosenAnswer]) -> bool:
        if not future.done():
            done = threading.Event()
            future.add_done_callback(lambda _: done.set())
            self._runtime.clock.sleep(self._runtime.settings.poll, done)
        return future.done()

    def _judge_rows(self, answer: ChosenAnswer) -> ChosenAnswer:
        return attrs.evolve(answer, values=tuple(map(self._ask, answer.rows)))

    def _ask(self, row: TrafficRow) -> float | None:
        """Ask the judge, and ask again if it fails for now."""
        pauses = Retries(RETRIES, self._runtime.clock).pauses()
        while True:
            try:
                return self._score(row)
            except RateLimited as refused:
                if self._stopping:
                    raise
                self._pause(refused.retry_after)
            except (BackendError, Overloaded) as failure:
                pause = next(pauses, None)
                if pause is None or self._stopping:
                    raise
                self._pause(max(pause, getattr(failure, "retry_after", None) or 0.0))

    def _score(self, row: TrafficRow) -> float | None:
        asked = [message.text for message in row.messages[:-1] if message.role is Role.USER]
        try:
            question = self._judge.asks(row.answer.text, {"prompt": asked[-1] if asked else "", **row.metadata})
        except KeyError as missing:
            raise InvalidInput.at("score", "prompt", msg=f"names {missing}, which the metadata lack") from None
        options = {"seed": 0, **self._judge.options, "model": self._judge.model, "messages": question}
        entity, project = self._place
        answer = self._chat.complete(**options, entity=entity, project=project)
        try:
            return number_of(self._judge.read(answer.text))
        except Unscored:
            return None

    def _pause(self, seconds: float) -> None:
        """Wait, but no longer than until the judging ends."""
        until = self._runtime.clock.monotonic() + seconds
        while not self._stopping and (left := until - self._runtime.clock.monotonic()) > 0:
            self._runtime.clock.sleep(min(left, self._runtime.settings.poll))
