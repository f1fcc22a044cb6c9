"""The weights of a model in training as columns of numpy, numbered as they come.

A row is the bytes of the numbers of a feature's weights, so the rows of many features are one array at the cost of
copying bytes.
"""

from array import array
from collections.abc import Callable, Iterable, Mapping
from itertools import compress
from struct import Struct

import attrs
import numpy as np
import numpy.typing as npt

from modelyard.engines.tabular.model import TOKEN_BITS, Row, parameter_columns
from modelyard.engines.tabular.tokenizer import TOKENS, VOCABULARY_SIZE

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_NUMBER = Struct("=q")


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

    By number: `weights` (nats), and the place of each among the logits of its positions.
    """

    def __init__(self, start: Mapping[int, Row]) -> None:
        self._start = start
        self._rows: dict[int, bytes] = {}
        self._numbers: dict[int, int] = {}
        self._places = np.zeros(1 << 10, np.int64)
        self.weights: Floats = np.zeros(1 << 10)

    def load(self, features: Ints, place_of: Iterable[Callable[[int], int]]) -> None:
        """Take the rows of these features from `start`; each has a function from a token to its weight's place."""
        if self._start:
            for feature, place in zip(features.tolist(), place_of, strict=False):
                if feature in self._start and feature not in self._rows:
                    row = self._start[feature]
                    added = self._add({feature << TOKEN_BITS | token: place(token) for token in row})
                    self.weights[added] = [*row.values()]  # may be another array than before they were added

    def meet(self, features: Ints, tokens: Ints, places: Ints) -> None:
        """From now on there is a weight for each of these features with the token beside it, at this place."""
        parameters = (features << TOKEN_BITS | tokens).tolist()
        new = [parameter not in self._numbers for parameter in parameters]
        if any(new):
            self._add(dict(compress(zip(parameters, places.tolist(), strict=True), new)))

    def _add(self, places: Mapping[int, int]) -> slice:
        """Add weights of 0, by parameter. Returns their numbers."""
        numbers = range(len(self._numbers), len(self._numbers) + len(places))
        rows = self._rows
        for parameter, number in zip(places, numbers, strict=True):
            feature = parameter >> TOKEN_BITS
            rows[feature] = rows.get(feature, b"") + _NUMBER.pack(number)
        self._numbers.update(zip(places, numbers, strict=True))
        if numbers.stop > len(self.weights):
            self.weights = np.concatenate((self.weights, np.zeros(numbers.stop)))
            self._places = np.concatenate((self._places, np.zeros(numbers.stop, np.int64)))
        added = slice(numbers.start, numbers.stop)
        self._places[added] = list(places.values())
        return added

    def active(self, features: Ints, values: Floats, starts: Ints, times: Ints) -> ActiveWeights:
        """Return the weights of features that have rows: each feature has a value, the place at which the logits begin
        that it adds to, and a number of positions at which it is active there.
        """
        rows = list(map(self._rows.__getitem__, features.tolist()))
        numbers = np.frombuffer(b"".join(rows), np.int64)
        sizes = np.fromiter(map(len, rows), np.int64, len(rows)) // _NUMBER.size
        spread = np.repeat(np.arange(len(rows)), sizes)
        return ActiveWeights(numbers, values[spread], starts[spread] + self._places[numbers], times[spread])

    @property
    def rows(self) -> Mapping[int, Row]:
        """All weights, by feature and token."""
        rows: dict[int, dict[int, float]] = {feature: {} for feature in self._rows}
        for parameter, weight in zip(self._numbers, self.weights.tolist(), strict=False):
            rows[parameter >> TOKEN_BITS][TOKENS[parameter % VOCABULARY_SIZE]] = weight
        return {**self._start, **rows}

    def parameters(self) -> "tuple[array[int], array[float]]":
        """Return all weights as `Adapter.parameters` does."""
        rest = {feature: row for feature, row in self._start.items() if feature not in self._rows}
        others, other_weights = map(np.array, parameter_columns(rest))
        count = len(self._numbers)
        ids = np.concatenate((np.fromiter(self._numbers, np.int64, count), others))
        weights = np.concatenate((self.weights[:count], other_weights))
        order = np.argsort(ids)
        return array("q", ids[order].tobytes()), array("d", weights[order].tobytes())
