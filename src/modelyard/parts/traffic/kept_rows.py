"""The rows that a collection keeps, each once: in a temporary file, so that memory is bounded."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from itertools import groupby
from types import TracebackType
from typing import Self

import attrs

from modelyard.domain.canonical import canonical_json, digest
from modelyard.domain.completion import Message, Role
from modelyard.domain.training import Example, Preference
from modelyard.formats.chat.messages import message_object
from modelyard.formats.chat.tools import tool_object
from modelyard.formats.json import loads
from modelyard.formats.training_data import dump_example, example_of

_TABLE = """CREATE TABLE kept (
    number INTEGER PRIMARY KEY, prompt TEXT, answer TEXT, share REAL, total REAL, times INTEGER, line BLOB,
    UNIQUE (prompt, answer)
)"""
_ADD = """INSERT INTO kept (prompt, answer, share, total, times, line) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET total = total + excluded.total, times = times + excluded.times"""
_ROWS = "SELECT prompt, line, share, CASE WHEN times > 0 THEN total / times END FROM kept ORDER BY "

_BITS = 48


@attrs.frozen
class KeptRow:
    """A conversation, and the mean of the scores of all equal conversations. `share` from 0 to 1 decides on which side
    of a split it is: the same for all turns of a conversation, whatever else is collected.
    """

    prompt: str
    example: Example
    share: float
    score: float | None


class KeptRows:
    """Conversations, equal ones kept once. A context manager; leaving it removes them."""

    def __init__(self) -> None:
        self._table = sqlite3.connect("", isolation_level=None, check_same_thread=False)  # a temporary file
        self._table.execute(_TABLE)
        self._table.execute("BEGIN")

    def add(self, example: Example, score: float | None) -> bool:
        """Add a conversation; False if it is here already, and only the score is added."""
        asked, answer = example.messages[:-1], example.messages[-1]
        tools = [tool_object(tool) for tool in example.tools]
        prompt = digest([[message_object(message) for message in asked], tools])
        scored = (0.0, 0) if score is None else (score, 1)
        values = (prompt, digest(message_object(answer)), _share(asked), *scored, dump_example(example))
        before = self.count
        self._table.execute(_ADD, values)
        return self.count > before

    def rows(self, order: str = "number") -> Iterator[KeptRow]:
        with closing(self._table.execute(_ROWS + order)) as found:
            for prompt, line, share, score in found:
                yield KeptRow(prompt, example_of(loads(line)), share, score)  # type: ignore[arg-type]

    def prompts(self) -> Iterator[list[KeptRow]]:
        """Yield the scored answers to each prompt, the best first and the worst last."""
        for _, answers in groupby(self.rows("prompt, number"), lambda row: row.prompt):
            yield sorted(answers, key=lambda row: -(row.score or 0.0))

    @property
    def count(self) -> int:
        ((count,),) = self._table.execute("SELECT coalesce(max(number), 0) FROM kept")
        return int(count)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._table.close()


def preference_between(best: KeptRow, worst: KeptRow) -> Preference:
    *asked, chosen = best.example.messages
    sources = (*best.example.sources, *worst.example.sources)
    return Preference(tuple(asked), chosen, worst.example.messages[-1], best.example.tools, sources)


def _share(asked: tuple[Message, ...]) -> float:
    """Return a number from 0 to 1 that the beginning of a conversation determines, up to its first question."""
    end = next((at for at, one in enumerate(asked) if one.role is Role.USER), len(asked)) + 1
    begun = canonical_json([message_object(message) for message in asked[:end]])
    return int(sha256(begun.encode()).hexdigest()[: _BITS // 4], 16) / 2.0**_BITS
