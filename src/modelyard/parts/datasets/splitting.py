"""On which side of a split a row lies: by a hash of its group and the seed, and of nothing else. So a split has no
group on both sides, and rows that are added later move no row that was there."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from modelyard.domain.canonical import canonical_json
from modelyard.errors import InvalidInput
from modelyard.lazy import hashlib

_BYTES = 6
"""Of a hash: a float holds so many exactly."""


def place_of(key: object, seed: int) -> float:
    """Return where a key lies, from 0 to below 1."""
    found = hashlib.sha256(canonical_json([seed, key]).encode()).digest()
    return int.from_bytes(found[:_BYTES], "big") / 256.0**_BYTES


def check_part(part: object) -> None:
    """Raise `InvalidInput` unless this is a part of the rows."""
    if isinstance(part, bool) or not isinstance(part, int | float) or not 0 < part < 1:
        raise InvalidInput.at("held_out", msg="must lie between 0 and 1, such as 0.1")


def sides(places: Sequence[float], part: float) -> Iterator[bool]:
    """Yield of each row whether it is held out: about this `part` of the groups, at least one, and never all.

    Raises `InvalidInput` if all rows are of one group.
    """
    lowest, highest = (min(places), max(places)) if places else (0.0, 0.0)
    if lowest == highest:
        raise InvalidInput.at("data", msg="has rows of one group alone, so it cannot be split; give more rows")
    return (place == lowest or (place < part and place != highest) for place in places)


def field_of(row: Mapping[str, Any], path: str) -> object:
    """Return the value of a row's field, such as "metadata.user". Raises `InvalidInput` if it has none."""
    found: Any = row
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    if found is None:
        raise InvalidInput.at(*path.split("."), msg="is required: rows are split by it")
    return found
