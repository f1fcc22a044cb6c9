"""The times of a range, as people write them."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from modelyard.errors import InvalidInput
from modelyard.parts.times import WORDS, moment_of


def range_of(since: str | None, until: str | None, month: str | None, now: datetime) -> Mapping[str, Any]:
    """Return the arguments of `platform.usage.total` for a range. Raises `InvalidInput`."""
    return {"since": _moment(since, "since", now), "until": _moment(until, "until", now), "month": month}


def _moment(text: str | None, name: str, now: datetime) -> datetime | None:
    try:
        return None if text is None else moment_of(text, now)
    except ValueError:
        raise InvalidInput.at(name, msg=f"must be {WORDS}") from None
