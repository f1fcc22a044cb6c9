"""Times and ages, as people write them."""

import re
from datetime import UTC, datetime, timedelta

_AGE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

WORDS = "a date or a time, such as 2026-11-23 or 2026-11-23T12:00Z, or an age, such as 2h, 30d or 4w"


def age_of(text: str) -> timedelta | None:
    """Return the age that a text like 30m, 2h, 30d or 4w means; None for any other. Raises OverflowError."""
    found = _AGE.fullmatch(text)
    return None if found is None else timedelta(**{_UNITS[found[2]]: float(found[1])})


def moment_of(text: str, now: datetime) -> datetime:
    """Return the moment that an age before `now` means, or a date or a time of ISO 8601, in UTC unless it names a zone.

    Raises ValueError.
    """
    try:
        age = age_of(text)
        moment = datetime.fromisoformat(text) if age is None else now - age
    except OverflowError as beyond:
        raise ValueError(text) from beyond
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
