"""How the rows of a job are read: how long one may be, what is done with a longer one, and what there is in all."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs

from modelyard.errors import InvalidInput
from modelyard.parts.torch.training.examples import TokenRow
from modelyard.parts.torch.training.options import BatchOptions, LocalSFTConfig, Overlong


@attrs.frozen
class RowReading:
    """Rows may have `most` tokens, up to their last trained one. `after_end` trains what the template writes after the
    end of an answer, too.
    """

    most: int
    overlong: Overlong = "drop"
    after_end: bool = False

    @classmethod
    def of(cls, config: Any, context_length: int) -> "RowReading":
        if not isinstance(config, BatchOptions):
            return cls(context_length)
        most = min(config.max_length or context_length, context_length)
        return cls(most, config.overlong, isinstance(config, LocalSFTConfig) and config.train_after_end)

    def fitted(self, row: TokenRow) -> TokenRow:
        """Return a row, or what is left of one that is too long. Raises `InvalidInput` if none may be."""
        length = len(row.ids)
        if length <= self.most:
            return row
        if self.overlong == "refuse":
            msg = f"are a row of {length} tokens up to the last trained one, and at most {self.most} are allowed"
            raise InvalidInput.at("messages", msg=f"{msg}; shorten it, leave it out, or choose another 'overlong'")
        first = length - self.most if self.overlong == "keep_end" else 0
        last = {"drop": 0, "keep_start": self.most}.get(self.overlong, length)
        kept = [(at - first, known) for at, known in zip(row.places, row.logprobs, strict=True) if first < at < last]
        if not kept:
            return TokenRow.left_out(row)
        places, logprobs = zip(*kept, strict=True)
        return TokenRow(row.ids[first : first + places[-1] + 1], places, logprobs)


# ---- what there is in all ------------------------------------------------------------------------------------------


@attrs.define
class Survey:
    """The rows of a job, the tokens to train, the length of the longest sequence, and how many were too long."""

    rows: int = 0
    tokens: int = 0
    longest: int = 0
    truncated: int = 0
    dropped: int = 0

    def count(self, before: Sequence[TokenRow], after: Sequence[TokenRow]) -> None:
        for one, left in zip(before, after, strict=True):
            self.tokens += len(left.places)
            self.longest = max(self.longest, len(left.ids))
            self.dropped += not left.places
            self.truncated += bool(left.places) and left.ids != one.ids


class Surveyed:
    """Rows that are counted in `survey` when they are read for the first time; `learner` counts their tokens."""

    def __init__(self, rows: Iterable[Any], learner: Any) -> None:
        self._rows, self._learner, self.survey = rows, learner, Survey()
        self._seen = False

    def __iter__(self) -> Iterator[Any]:
        if self._seen:
            yield from self._rows
            return
        self._learner.survey = self.survey
        for row in self._rows:
            self.survey.rows += 1
            yield row
        self._learner.survey, self._seen = None, True
