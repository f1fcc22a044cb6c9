"""How several trials of a row become one value."""

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from modelyard.errors import InvalidInput

Reducer = Callable[[Sequence[float]], float]

REDUCERS: Mapping[str, Reducer] = {
    "mean": lambda values: math.fsum(values) / len(values),
    "median": statistics.median,
    "min": min,
    "max": max,
}
"""Reducers without a number. Of bools, `max` is "passed in some trial", `min` "passed in every one"."""

PATTERN = r"mean|median|min|max|pass[@^][1-9][0-9]{0,3}"
"""`pass@5` and `pass^5` take a number."""


EXPECTED = f"must be one of {', '.join(REDUCERS)}, pass@k, pass^k, such as pass@5"


@lru_cache(maxsize=64)
def reducer_of(name: str) -> Reducer:
    """Return the reducer of this name. Raises `InvalidInput`.

    `pass@k` is the expected best of k trials of the row, drawn without repetition: of bools the chance that one of k
    passes. `pass^k` is the expected worst: the chance that all k pass. Of a row with fewer trials all are drawn.

    >>> reducer_of("pass@2")([True, False, False]), reducer_of("pass^2")([True, True, False])
    (0.6666666666666666, 0.3333333333333333)
    """
    if not isinstance(name, str) or not re.fullmatch(PATTERN, name):
        raise InvalidInput.at("reducer", msg=EXPECTED)
    if name in REDUCERS:
        return REDUCERS[name]
    count, best = int(name[5:]), name[4] == "@"
    return lambda values: _expected_extreme(values, count, best)


def _expected_extreme(values: Sequence[float], count: int, best: bool) -> float:
    drawn = min(count, len(values))
    ordered = sorted(values, reverse=not best)
    ways = (math.comb(at, drawn - 1) for at in range(len(ordered)))  # in which a value is the last of those drawn
    return math.fsum(value * way for value, way in zip(ordered, ways, strict=True)) / math.comb(len(ordered), drawn)
