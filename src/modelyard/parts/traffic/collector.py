"""Collecting stored answers, which can be stopped anywhere and resumed: kept rows are written as lines.

A line holds a row and its score. After the rows of some answers comes a line with the position: the source and the
answer that was read last, and how much was left out so far.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Any

from modelyard.domain.completion import Message, Role
from modelyard.domain.identity import Principal
from modelyard.domain.training import Dataset, Example, Preference
from modelyard.formats.json import dumps, loads
from modelyard.formats.training_data import DATASETS, dump_example, example_of, says_nothing
from modelyard.parts.traffic.judging import ChosenAnswer, Judging, with_scores
from modelyard.parts.traffic.kept_rows import KeptRows, preference_between
from modelyard.parts.traffic.redaction import TextRedaction
from modelyard.parts.traffic.request import CollectRequest
from modelyard.parts.traffic.rows import TrafficReader
from modelyard.parts.traffic.selection import AnsweredBy, Selection
from modelyard.parts.traffic.traffic_row import LeftOut, StoredAnswer, TrafficRow
from modelyard.platform.runtime import Runtime
from modelyard.platform.training.data import keep_version, store_rows

HELD_OUT = "-held-out"
"""The suffix of the name of the dataset with the held-out rows."""


class Collector:
    """Reads stored answers, the newest first, into rows that are each kept once.

    Answers that were stored after `requested_at` are left out. `read` counts the answers that were read.
    """

    def __init__(
        self,
        runtime: Runtime,
        principal: Principal,
        request: CollectRequest,
        kept: KeptRows,
        requested_at: datetime | None = None,
    ) -> None:
        self._runtime, self._principal, self._request, self._kept = runtime, principal, request, kept
        project = None if request.everywhere else request.project
        self._reader = TrafficReader(runtime, principal, request.entity, project)
        self._redaction, self._requested_at = TextRedaction.of(request.redact), requested_at
        self._selection = _selection(runtime, principal, request)
        self._left_out, self._good = Counter[str](), 0
        self._place: tuple[str, tuple[Any, ...]] = ("", ())
        self._lines: list[bytes] = []
        self._began = runtime.clock.monotonic()
        self.read = 0

    # ---- reading

    def total(self) -> int:
        return sum(map(self._reader.count, self._request.sources))

    def steps(self) -> Iterator[bool]:
        """Read the remaining answers. Yields True after each, and False while it waits for a judge to score the next.

        Raises the errors of a function or judge.
        """
        if self._is_full():
            return
        judge, place = self._request.judge, (self._request.entity, self._request.project)
        value = partial(with_scores, self._selection)
        if judge is not None:
            value = Judging(self._runtime, self._principal, judge, place).with_scores  # type: ignore[assignment]
        with closing(value(map(self._chosen, self._answers()))) as answers:
            for answer in answers:
                if answer is not None:
                    self._add(answer)
                yield answer is not None
                if self._is_full():
                    return

    def _is_full(self) -> bool:
        return self._request.limit is not None and self._good >= self._request.limit

    def _answers(self) -> Iterator[StoredAnswer]:
        (source, place), sources = self._place, [*self._request.sources]
        left = sources[sources.index(source) :] if source else sources  # type: ignore[arg-type]
        return chain.from_iterable(self._reader.answers(one, place if one == source else None) for one in left)

    def _chosen(self, stored: StoredAnswer) -> ChosenAnswer:
        rows, missed = list[TrafficRow](), list[str]()
        for found in stored.found:
            row = found if isinstance(found, LeftOut) else self._selected(found)
            if isinstance(row, LeftOut):
                missed.append(row.reason)
            else:
                rows.append(row)
        return ChosenAnswer(stored, tuple(rows), tuple(missed))

    def _selected(self, row: TrafficRow) -> TrafficRow | LeftOut:
        if self._requested_at is not None and row.created_at > self._requested_at:
            return LeftOut("another time")
        missed = self._selection.missed(row)
        if missed is not None:
            return LeftOut(missed)
        if self._redaction.steps and any(_has_files(message) for message in row.messages):
            return LeftOut("not only text")
        if any(message.role is Role.ASSISTANT and says_nothing(message) for message in row.messages):
            return LeftOut("no answer")
        row = self._reader.with_feedback(row) if self._selection.reads_feedback else row
        where = self._request.where
        return row if where is None or where(row) else LeftOut("where")

    def _add(self, answer: ChosenAnswer) -> None:
        self._left_out.update(answer.missed)
        for row, value in zip(answer.rows, answer.values, strict=True):
            if self._is_full():
                break
            if self._request.score is not None and value is None:
                self._left_out["no score"] += 1
                continue
            example = _example(row, self._redaction)
            is_new = self._kept.add(example, value)
            if is_new or value is not None:
                self._lines.append(b'{"score":%s,"row":%s}\n' % (dumps(value), dump_example(example).rstrip()))
            if is_new:
                self._good += self._is_good(value)
            else:
                self._left_out["equal"] += 1
        self._place = answer.stored.source, answer.stored.place
        self.read += 1

    def _is_good(self, score: float | None) -> bool:
        at_least = self._request.at_least
        return at_least is None or (score is not None and score >= at_least)

    # ---- stopping and resuming

    def take_lines(self) -> Iterator[bytes]:
        lines, self._lines = self._lines, []
        source, place = self._place
        at = [one.isoformat() if isinstance(one, datetime) else one for one in place]
        position = {"source": source, "at": at, "left_out": self._left_out, "good": self._good, "read": self.read}
        yield from lines
        yield dumps(position) + b"\n"

    def forget_lines(self) -> None:
        self._lines = []

    def resume(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            one: Any = loads(line)
            if "row" in one:
                self._kept.add(example_of(one["row"]), one["score"])
                continue
            at = (datetime.fromisoformat(part) if isinstance(part, str) else part for part in one["at"])
            self._place, self._left_out = (one["source"], tuple(at)), Counter(one["left_out"])
            self._good, self.read = one["good"], one["read"]

    # ---- the end

    def finish(self) -> tuple[Dataset | None, Dataset | None, Mapping[str, int]]:
        """Write the datasets to train on and to hold out, None for a dataset without rows; and count the rows in
        neither.

        Raises `StorageFull`.
        """
        part, left_out = self._request.holdout, self._left_out.copy()
        held_out = self._keep(HELD_OUT, self._rows((0.0, part), left_out))
        train = self._keep("", self._rows((part, 1.0), left_out))
        return train, held_out, {reason: count for reason, count in left_out.items() if count}

    def _keep(self, suffix: str, rows: Iterator[Example | Preference]) -> Dataset | None:
        for first in rows:
            self._runtime.require_room()
            stored, count = store_rows(self._runtime.artifacts, DATASETS, chain([first], rows))
            place = self._request.entity, self._request.project, self._request.name + suffix
            return keep_version(self._runtime, place, stored, count, self._began)
        return None

    def _rows(self, part: tuple[float, float], left_out: Counter[str]) -> Iterator[Example | Preference]:
        """Yield the rows of one part of the conversations, and count what is left out of it."""
        if not self._request.pairs:
            for row in self._kept.rows():
                if part[0] <= row.share < part[1]:
                    if self._is_good(row.score):
                        yield row.example
                    else:
                        left_out["score"] += 1
            return
        for answers in self._kept.prompts():
            best, worst = answers[0], answers[-1]
            if part[0] <= best.share < part[1]:
                if self._is_good(best.score) and best.score != worst.score:
                    yield preference_between(best, worst)
                    left_out["between"] += len(answers) - 2
                else:
                    left_out["not paired"] += len(answers)


def _selection(runtime: Runtime, principal: Principal, request: CollectRequest) -> Selection:
    model = request.model
    answered = model and runtime.store.read(partial(AnsweredBy.of, principal=principal, name=model))
    times = request.since, request.until
    return Selection(runtime, answered or None, request.metadata, *times, request.where, request.score)


def _has_files(message: Message) -> bool:
    return isinstance(message.content, tuple) and any(part.type != "text" for part in message.content)


def _example(row: TrafficRow, redaction: TextRedaction) -> Example:
    tools = tuple(map(redaction.tool, row.tools)) if redaction.steps else row.tools
    messages = tuple(map(redaction.message, row.messages)) if redaction.steps else row.messages
    return Example(messages, tools, (row.id,))
