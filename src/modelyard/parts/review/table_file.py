"""A person's labels of a review as a CSV file: written for a spreadsheet, and read again."""

import csv
import io
import json
from collections.abc import Iterable, Iterator
from typing import Any

from modelyard.errors import InvalidInput, Problem
from modelyard.parts.review.labels import RowToLabel
from modelyard.parts.review.records import Review

COLUMNS = ("review", "row", "inputs", "output", "label", "note")
UNSURE = "?"
MAX_FILE = 50_000_000

_YES = frozenset({"yes", "y", "true", "1"})
_NO = frozenset({"no", "n", "false", "0"})
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def written(review: Review, rows: Iterable[RowToLabel]) -> str:
    """Return the rows as CSV, with an empty `label` where the person has given none."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        said = label_text(review, row.value) if row.labelled else ""
        texts = (_cell(_text(dict(row.inputs))), _cell(_text(row.output)), said, _cell(row.note))
        writer.writerow((review.id, row.place, *texts))
    return file.getvalue()


def label_text(review: Review, value: float | None) -> str:
    """Return a label as people write it."""
    if value is None:
        return UNSURE
    return ("yes" if value else "no") if review.yes_no else f"{value:g}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=dict)


def _cell(text: str) -> str:
    """Keep a spreadsheet from reading a text as a formula, by an apostrophe before it."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def _uncelled(text: str) -> str:
    return text[1:] if text[:1] == "'" and text[1:].startswith(_FORMULA) else text


def read(review: Review, text: str) -> Iterator[tuple[int, float | None, str]]:
    """Yield the row, the label and the note of each line that has a label. Raises `InvalidInput` for a file of another
    review, for a line that cannot be read, and for one without the columns `row` and `label`."""
    if len(text) > MAX_FILE:
        raise InvalidInput.at("file", msg=f"may have at most {MAX_FILE} characters")
    lines = csv.DictReader(io.StringIO(text.removeprefix("\ufeff"), newline=""))
    lacking = {"row", "label"}.difference(lines.fieldnames or ())
    if lacking:
        raise InvalidInput.at("file", msg=f"lacks the column {' and '.join(sorted(lacking))}")
    problems, found = [], []
    for number, line in enumerate(lines, 2):
        if not (label := (line["label"] or "").strip()):
            continue
        try:
            found.append((_place(review, line), label_of(review, label), _uncelled(line.get("note") or "")))
        except InvalidInput as wrong:
            problems += [Problem(("file", f"line {number}", *one.loc), one.msg) for one in wrong.problems]
    if problems:
        raise InvalidInput(problems[:100])
    yield from found


def _place(review: Review, line: dict[str, str | None]) -> int:
    text = (line["row"] or "").strip()
    if line.get("review") not in (None, "", review.id):
        raise InvalidInput.at("review", msg=f"is {line['review']!r}, and labels of {review.id} are read")
    if not (text.isascii() and text.isdigit() and int(text) < review.size):
        raise InvalidInput.at("row", msg=f"must be the number of a row, 0 to {review.size - 1}")
    return int(text)


def label_of(review: Review, text: str) -> float | None:
    """Return the label that a text means: yes or no, a number, or "?" for somebody who cannot say. Raises
    `InvalidInput`."""
    word = text.strip().casefold()
    if word == UNSURE:
        return None
    if review.yes_no and word in _YES | _NO:
        return float(word in _YES)
    try:
        number = float(word)
    except ValueError:
        what = 'yes, no or "?"' if review.yes_no else 'a number or "?"'
        raise InvalidInput.at("label", msg=f"must be {what}, and is {text!r}") from None
    return review.checked(number)
