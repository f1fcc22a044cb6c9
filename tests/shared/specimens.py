"""A record of any class, made of the types of its columns, by any version since 0.1.0."""

from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any

from modelyard.domain.record import Record
from modelyard.stores.columns import columns_of

_MOMENT = datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=UTC)


def specimen(record: Record, which: str = "", **given: Any) -> Any:
    """Return a record that a store keeps, whatever it means, with these values; another one for another `which`."""
    numbered = getattr(record, "sequence", None)
    values = {
        name: _value(f"{name} of {which or record.table}", column.kind.types[0])
        for name, column in columns_of(record).items()
        if name != numbered
    }
    return record.cls(**values | given)


def _value(text: str, type_: type) -> Any:
    if issubclass(type_, Enum):
        return next(iter(type_))
    values = {str: text, int: 7, bool: True, float: 0.25, bytes: b"\0\xff"}
    values |= {Decimal: Decimal("0.10"), datetime: _MOMENT, tuple: ("é", 1)}
    return values.get(type_, {"k": ["ü", 1.5, None]})
