"""Which checkpoints of a model are kept: the host's policy, and the checkpoints that it expires."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

import attrs

from modelyard.domain.models import Checkpoint
from modelyard.domain.record import Record
from modelyard.errors import InvalidInput, Problem

MAX_METRIC = 128


@attrs.frozen
class Retention:
    """The rules by which a model's checkpoints are kept. A checkpoint that no rule keeps is removed; without any rule
    all stay.

    `keep_last` is how many of the highest steps to keep. `keep_best` is how many to keep with the highest `metric`, or
    the lowest if `lower_is_better`. `ttl` keeps checkpoints younger than this many seconds. Raises `InvalidInput`
    naming every rule out of bounds.
    """

    model_id: str
    keep_last: int | None = None
    keep_best: int | None = None
    metric: str | None = None
    lower_is_better: bool = False
    ttl: float | None = None

    def __attrs_post_init__(self) -> None:
        problems = [Problem((name,), message) for name, fits, message in self._bounds() if not fits]
        if problems:
            raise InvalidInput(problems)

    def _bounds(self) -> list[tuple[str, bool, str]]:
        metric = "must be the name of a metric and a number of 1 or more"
        best = (self.metric, self.keep_best)
        fits = best == (None, None) or (None not in best and 1 <= len(self.metric or "") <= MAX_METRIC)
        longest = timedelta.max.total_seconds()
        return [
            ("keep_last", self.keep_last is None or self.keep_last >= 1, "must be 1 or more"),
            ("keep_best", fits and (self.keep_best is None or self.keep_best >= 1), metric),
            ("ttl", self.ttl is None or 0 < self.ttl <= longest, "must be more than 0"),
        ]

    def expired(self, checkpoints: Sequence[Checkpoint], now: datetime) -> list[Checkpoint]:
        """Return the checkpoints that no rule keeps, from all of a model's, sorted by step. The latest, pinned ones,
        and step 0, which has no files, are never among them."""
        if self.keep_last is self.keep_best is self.ttl is None:
            return []
        kept = {one.id for one in (*self._last(checkpoints), *self._best(checkpoints), *self._young(checkpoints, now))}
        return [one for one in checkpoints[:-1] if one.step > 0 and not one.pinned and one.id not in kept]

    def _last(self, checkpoints: Sequence[Checkpoint]) -> Sequence[Checkpoint]:
        return checkpoints[-self.keep_last :] if self.keep_last else ()

    def _best(self, checkpoints: Sequence[Checkpoint]) -> Sequence[Checkpoint]:
        if self.metric is None:
            return ()
        sign = -1 if self.lower_is_better else 1
        measured = [
            (sign * one.metrics[self.metric], one.step, one) for one in checkpoints if self.metric in one.metrics
        ]
        return [one for _, _, one in sorted(measured, key=lambda ranked: ranked[:2])[-(self.keep_best or 0) :]]

    def _young(self, checkpoints: Sequence[Checkpoint], now: datetime) -> Iterable[Checkpoint]:
        ttl = self.ttl
        return () if ttl is None else (one for one in checkpoints if (now - one.created_at).total_seconds() < ttl)


RECORDS = (Record(Retention, "retentions", ("model_id",)),)
