"""Keep weights as columns of numpy: without the folder, a training step takes twice the CPU.

The weights are numbered as they come.
A row is the bytes of the numbers of a feature's weights, so the rows of many features are one array at the cost of
copying bytes.
"""

from array import array
from collections.abc import Callable, Iterable, Mapping
from itertools import repeat
from struct import Struct

import attrs
import numpy as np
import numpy.typing as npt

from modelyard.engines.tabular.model import TOKEN_BITS, Row, parameter_columns
from modelyard.engines.tabular.tokenizer import TOKENS, VOCABULARY_SIZE

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_NUMBER = Struct("8s")
"""The bytes of one number."""


@attrs.frozen(eq=False)
class ActiveWeights:
    """The weights in the rows of active features, row after row.

    `numbers` are theirs, `values` those of their features, `places` where their logits are, and `times` at how many
    positions the feature is active there.
    """

    numbers: Ints
    values: Floats
    places: Ints
    times: Ints


class WeightColumns:
    """The weights that training has met, and those of `start` that have the same features.

    By number: `weights` (nats), their parameter ids, and the place of each among the logits of its positions.
    """

    def __init__(self, start: Mapping[int, Row]) -> None:
        self._start = start
        self._rows: dict[int, bytes] = {}
        self._count = 0
        self._ids, self._places = np.zeros(1 << 10, np.int64), np.zeros(1 << 10, np.int64)
        self.weights: Floats = np.zeros(1 << 10)

    def load(self, features: Ints, place_of: Iterable[Callable[[int], int]]) -> None:
        """Take the rows of these features from `start`; each has a function from a token to its weight's place."""
        if self._start:
            for feature, place in zip(features.tolist(), place_of, strict=False):
                if feature in self._start and feature not in self._rows:
                    row = self._start[feature]
                    ids, places = [feature << TOKEN_BITS | token for token in row], [place(token) for token in row]
                    added = self._add(np.array(ids, np.int64), np.array(places, np.int64))
                    self.weights[added] = [*row.values()]  # may be another array than before they were added

    def meet(self, features: Ints, tokens: Ints, places: Ints) -> None:
        """From now on there is a weight for each of these features with the token beside it, at this place."""
        numbers, owners = self._found(features)
        ids = features << TOKEN_BITS | tokens
        new = np.ones(len(ids), np.bool_)
        new[owners[self._ids[numbers] == ids[owners]]] = False
        ids, places = ids[new], places[new]
        first = np.sort(np.unique(ids, return_index=True)[1])
        self._add(ids[first], places[first])

    def meet_each(self, features: Ints, tokens: Ints) -> None:
        """From now on there is a weight for each of these features with each of these tokens, at the token's place."""
        numbers, owners = self._found(features)
        new = np.zeros((len(features), VOCABULARY_SIZE), np.bool_)
        new[:, tokens] = True
        new[owners, self._places[numbers]] = False
        owners, found = np.nonzero(new)
        self._add(features[owners] << TOKEN_BITS | found, found)

    def _found(self, features: Ints) -> tuple[Ints, Ints]:
        """Return the numbers of the weights of these features, row after row, and for each the place of its feature."""
        rows = list(map(self._rows.get, features.tolist(), repeat(b"")))
        sizes = np.fromiter(map(len, rows), np.int64, len(rows)) // _NUMBER.size
        return np.frombuffer(b"".join(rows), np.int64), np.repeat(np.arange(len(rows)), sizes)

    def _add(self, ids: Ints, places: Ints) -> slice:
        """Add weights of 0. Returns their numbers."""
        added = slice(self._count, self._count + len(ids))
        rows, numbers = self._rows, np.arange(added.start, added.stop).tobytes()
        for feature, (number,) in zip((ids >> TOKEN_BITS).tolist(), _NUMBER.iter_unpack(numbers), strict=True):
            rows[feature] = rows.get(feature, b"") + number
        self._count = added.stop
        if added.stop > len(self.weights):
            self.weights = np.concatenate((self.weights, np.zeros(added.stop)))
            self._ids = np.concatenate((self._ids, np.zeros(added.stop, np.int64)))
            self._places = np.concatenate((self._places, np.zeros(added.stop, np.int64)))
        self._ids[added], self._places[added] = ids, places
        return added

    def active(self, features: Ints, values: Floats, starts: Ints, times: Ints) -> ActiveWeights:
        """Return the weights of features that have rows: each feature has a value, the place at which the logits begin
        that it adds to, and a number of positions at which it is active there.
        """
        numbers, owners = self._found(features)
        return ActiveWeights(numbers, values[owners], starts[owners] + self._places[numbers], times[owners])

    @property
    def rows(self) -> Mapping[int, Row]:
        """All weights, by feature and token."""
        rows: dict[int, dict[int, float]] = {feature: {} for feature in self._rows}
        for parameter, weight in zip(self._ids[: self._count].tolist(), self.weights.tolist(), strict=False):
            rows[parameter >> TOKEN_BITS][TOKENS[parameter % VOCABULARY_SIZE]] = weight
        return {**self._start, **rows}

    def parameters(self) -> "tuple[array[int], array[float]]":
        """Return all weights as `Adapter.parameters` does."""
        rest = {feature: row for feature, row in self._start.items() if feature not in self._rows}
        others, other_weights = map(np.array, parameter_columns(rest))
        ids = np.concatenate((self._ids[: self._count], others))
        weights = np.concatenate((self.weights[: self._count], other_weights))
        order = np.argsort(ids)
        return array("q", ids[order].tobytes()), array("d", weights[order].tobytes())
