"""The times of a range, as people write them."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from modelyard.errors import InvalidInput


def range_of(since: str | None, until: str | None, month: str | None) -> Mapping[str, Any]:
    """Return the arguments of `platform.usage.total` for a range. Raises `InvalidInput`."""
    return {"since": _moment(since, "since"), "until": _moment(until, "until"), "month": month}


def _moment(text: str | None, name: str) -> datetime | None:
    """Parse a date or a time of ISO 8601, in UTC unless it names a zone."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput.at(name, msg="must be a date or a time, such as 2026-11-23 or 2026-11-23T12:00Z") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
