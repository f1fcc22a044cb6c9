"""Read ahead for a group of steps: without it, budgeted requests at 1 ms of network wait 400 % more.

The steps of a group are tried, and what they would ask next is fetched in one round trip for all.

A step is a pure function of its transaction, so it may be begun as often as one likes. A trial ends where it asks for
something that is not known yet. Steps are tried apart from each other, so an answer may turn out not to be needed, or
another to be missing: the real run asks for that.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from modelyard.parts.postgres.batch import Batch, Known
from modelyard.parts.postgres.pages import Row, Statement
from modelyard.parts.postgres.rows import RecordPlan
from modelyard.parts.postgres.tx import PostgresTx
from modelyard.parts.postgres.wire import ends_group
from modelyard.protocols import Tx

_ROUNDS = 6
"""Round trips that are spent on reading ahead at most."""


class _Asked(BaseException):
    """Ends a trial that needs the answer to a statement. Not an `Exception`, so that no step swallows it."""

    def __init__(self, plan: RecordPlan, statement: Statement) -> None:
        self.plan, self.statement = plan, statement


class _Known(dict[Any, Any]):
    """What a trial knows: its own writes, then what was fetched."""

    def __init__(self, fetched: Mapping[Any, Any]) -> None:
        super().__init__()
        self._fetched = fetched

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or key in self._fetched

    def __missing__(self, key: Any) -> Any:
        return self._fetched[key]

    def get(self, key: Any, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 - this is what `get` does


class _Trial(Batch):
    """Holds the writes of a step that is tried, and sends nothing."""

    def __init__(self, batch: Batch) -> None:
        super().__init__(batch.wire)
        self.known, self.ahead = _Known(batch.known), batch.ahead

    def rows(self, plan: RecordPlan, sql: str, values: Row) -> list[Row]:
        if self.may_differ(plan, sql, values):
            raise _Ended  # only the server could tell what its writes have changed
        found = self.ahead.get((sql, values))
        if found is None:
            raise _Asked(plan, (sql, values))
        return found


class _Ended(BaseException):
    """Ends a trial that cannot continue."""


def read_ahead(
    batch: Batch,
    plans: Mapping[type, RecordPlan],
    steps: Sequence[Callable[[Tx], Any]],
    now: Callable[[], float],
    rounds: int = _ROUNDS,
) -> None:
    """Fetch what these steps will ask for, so far as that can be found out."""
    tried = [*steps]
    for _ in range(rounds):
        asked: dict[Statement, RecordPlan] = {}
        tried = [step for step in tried if _ask(partial(step, PostgresTx(plans, _Trial(batch), now)), asked)]
        if len(asked) < 2:
            return
        for (statement, plan), rows in zip(asked.items(), batch.wire.many([*asked]), strict=True):
            if statement[0] == plan.get:
                batch.known[plan, statement[1]] = Known(plan, rows[0]) if rows else None
            else:
                batch.ahead[statement] = rows


def _ask(trial: Callable[[], Any], asked: dict[Statement, RecordPlan]) -> bool:
    """Try a step, and note what it asks for. Return whether another trial may get further."""
    try:
        trial()
    except _Asked as needed:
        asked[needed.statement] = needed.plan
        return True
    except BaseException as error:
        if ends_group(error):
            raise
    return False
