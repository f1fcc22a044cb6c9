"""Records of any kind as a table, for notebooks."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from itertools import islice
from typing import Any

import attrs

from modelyard.domain.evaluation.run import RowResult
from modelyard.domain.evaluation.scorers import text_of
from modelyard.domain.record import EMPTY
from modelyard.parts.reports.html import Html, fragment, shortened, table, tag
from modelyard.parts.reports.line_plot import short_number

LONGEST = 80
MOST_ROWS = 50
_DIGEST = re.compile(r"[\w-]{43}|[0-9a-f]{64}")
ID_LENGTH = 8
"""Characters at the end of an id that are shown: ids that were made at the same time differ there."""

_SHOWN = (str, int, float, Decimal, datetime, Enum)


def records_table(items: Sequence[Any], more: bool) -> Html:
    """Return a table of attrs values of one class, with a column for each member that is text, a number or a time.
    Other values are shown as text. `more` says that there are further ones."""
    return fragment(lines_of(items), tag("p", "and more", kind="quiet") if more else "")


def lines_of(items: Sequence[Any]) -> Html:
    if not items:
        return tag("p", "Nothing is listed.")
    names = columns_of(items)
    columns = [(name.replace("_", " "), _kind([getattr(one, name) for one in items])) for name in names]
    measured = list(dict.fromkeys(name for one in items for name in _metrics(one)))
    columns += [(name.replace("_", " "), "number") for name in measured]
    rows = [
        [
            *([cell(name, getattr(one, name)) for name in names] or [_text(str(one))]),
            *(cell(name, _metrics(one).get(name)) for name in measured),
        ]
        for one in items
    ]
    return table(columns or [("", "text")], rows)


def _metrics(item: Any) -> Mapping[str, Any]:
    """Return what was measured of a checkpoint, such as its losses."""
    found = getattr(item, "metrics", None)
    return found if isinstance(found, Mapping) else EMPTY


def rows_table(rows: Iterable[RowResult]) -> Html:
    """Return the first rows of a run as a table: what was asked, the output, and the scores."""
    shown = list(islice(rows, MOST_ROWS + 1))
    if not shown:
        return fragment(tag("p", "There are no rows."))
    names = list(dict.fromkeys(name for row in shown for name in row.scores))
    columns = [("asked", "text"), ("output", "text"), *((name, "number") for name in names), ("detail", "text")]
    lines = [
        (
            _text(asked_text(row.row)),
            _text("" if row.output is None else text_of(row.output)),
            *("" if name not in row.scores else text_of(row.scores[name]) for name in names),
            _text(row.detail),
        )
        for row in shown[:MOST_ROWS]
    ]
    return fragment(table(columns, lines), tag("p", "and more", kind="quiet") if len(shown) > MOST_ROWS else "")


def asked_text(row: Mapping[str, Any]) -> str:
    """Return what a row asks, in short: its prompt, the last turn of its conversation, or all of it."""
    turns = row.get("messages")
    last = turns[-1] if isinstance(turns, list | tuple) and turns else None
    asked = row.get("prompt") if last is None else last.get("content") if isinstance(last, Mapping) else None
    return asked if isinstance(asked, str) else text_of(row)


def columns_of(items: Sequence[Any]) -> list[str]:
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


def cell(name: str, value: Any) -> object:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return shortened(f"{value:%Y-%m-%d %H:%M:%S}", value.isoformat())
    if name == "created" and type(value) is int:  # seconds, as in the formats of vendors
        return f"{datetime.fromtimestamp(value, UTC):%Y-%m-%d %H:%M:%S}"
    if isinstance(value, str) and _DIGEST.fullmatch(value):
        return shortened(f"{value[:ID_LENGTH]}…", value)
    if isinstance(value, float):
        return short_number(value)
    text = str(value)
    if name == "id" or name.endswith("_id"):
        return shortened(f"…{text[-ID_LENGTH:]}" if len(text) > 2 * ID_LENGTH else text, text)
    return _text(text)


def _text(text: str) -> Html:
    return shortened(text if len(text) <= LONGEST else f"{text[:LONGEST]}…", text)
