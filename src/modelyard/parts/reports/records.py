"""Records of any kind as a table, for notebooks."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Any

import attrs

from modelyard.parts.reports.html import Html, fragment, shortened, table, tag

LONGEST = 80
ID_LENGTH = 8
"""Characters at the end of an id that are shown: ids that were made at the same time differ there."""

_SHOWN = (str, int, float, Decimal, datetime, Enum)


def records_table(items: Sequence[Any], more: bool) -> Html:
    """Return a table of attrs values of one class, with a column for each member that is text, a number or a time.
    Other values are shown as text. `more` says that there are further ones."""
    if not items:
        return fragment(tag("p", "Nothing is listed."))
    names = _columns(items)
    columns = [(name.replace("_", " "), _kind([getattr(one, name) for one in items])) for name in names]
    rows = [[_cell(name, getattr(one, name)) for name in names] or [_text(str(one))] for one in items]
    return fragment(table(columns or [("", "text")], rows), tag("p", "and more", kind="quiet") if more else "")


def _columns(items: Sequence[Any]) -> list[str]:
    """Return the members that some item has a value of, and that no item has a collection in."""
    if not attrs.has(type(items[0])):
        return []
    found = []
    for field in attrs.fields(type(items[0])):
        values = [getattr(item, field.name, None) for item in items]
        shown = all(value is None or isinstance(value, _SHOWN) for value in values)
        if shown and any(value not in (None, "") for value in values):
            found.append(field.name)
    return found


def _kind(values: Sequence[Any]) -> str:
    numbers = [value for value in values if value is not None]
    return "number" if all(isinstance(value, int | float | Decimal) for value in numbers) else ""


def _cell(name: str, value: Any) -> object:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return shortened(f"{value:%Y-%m-%d %H:%M:%S}", value.isoformat())
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    if name == "id" or name.endswith("_id"):
        return shortened(f"…{text[-ID_LENGTH:]}" if len(text) > 2 * ID_LENGTH else text, text)
    return _text(text)


def _text(text: str) -> Html:
    return shortened(text if len(text) <= LONGEST else f"{text[:LONGEST]}…", text)
