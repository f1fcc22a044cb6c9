"""A person's labels of a review as a CSV file: written for a spreadsheet, and read again."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from modelyard.errors import InvalidInput, Problem
from modelyard.parts.review.labels import RowToLabel
from modelyard.parts.review.records import MOST_ROWS, Review

COLUMNS = ("review", "row", "inputs", "output", "label", "note")
UNSURE = "?"
MAX_FILE = 50_000_000
MOST_LINES = 10 * MOST_ROWS
MOST_CELLS = 1000

_YES = frozenset({"yes", "y", "true", "1"})
_NO = frozenset({"no", "n", "false", "0"})
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_QUOTED = re.compile(r'[",\r\n]')
_REST = re.compile(r"([^,\r\n]*)(,|[\r\n]+|\Z)")


def written(review: Review, rows: Iterable[RowToLabel]) -> str:
    """Return the rows as CSV, with an empty `label` where the person has given none."""
    lines = [",".join(COLUMNS)]
    for row in rows:
        said = label_text(review, row.value) if row.labelled else ""
        texts = _cell(_text(dict(row.inputs))), _cell(_text(row.output)), said, _cell(row.note)
        lines.append(",".join(map(_quoted, (review.id, str(row.place), *texts))))
    return "".join(f"{line}\n" for line in lines)


def _quoted(cell: str) -> str:
    return '"{}"'.format(cell.replace('"', '""')) if _QUOTED.search(cell) else cell


def label_text(review: Review, value: float | None) -> str:
    """Return a label as people write it."""
    if value is None:
        return UNSURE
    return ("yes" if value else "no") if review.yes_no else number_text(value)


def number_text(value: float) -> str:
    """Return a number from which the same one is read."""
    return repr(float(value)).removesuffix(".0")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=dict)


def _cell(text: str) -> str:
    """Keep a spreadsheet from reading a text as a formula, by one more apostrophe before it."""
    return f"'{text}" if text.lstrip("'").startswith(_FORMULA) else text


def _uncelled(text: str) -> str:
    return text[1:] if text[:1] == "'" and text.lstrip("'").startswith(_FORMULA) else text


def _lines(text: str) -> Iterator[list[str]]:
    """Yield the cells of each line that is not empty, however long they are. Raises `InvalidInput`."""
    at, cells, number = 0, list[str](), 1
    while at < len(text) or cells:
        if number > MOST_LINES or len(cells) >= MOST_CELLS:
            msg = f"is too much: at most {MOST_LINES} lines of at most {MOST_CELLS} cells are read"
            raise InvalidInput.at("file", f"line {number}", msg=msg)
        end = _end_of_quoted(text, at) if text.startswith('"', at) else at
        if end < 0:
            raise InvalidInput.at("file", f"line {number}", msg="has a quotation mark that is not closed")
        found = _REST.match(text, end)
        assert found is not None, "it may be empty"
        cells.append(text[at + 1 : max(at, end - 1)].replace('""', '"') + found[1])
        at = found.end()
        if found[2] != ",":
            number += 1
            if cells != [""]:
                yield cells
            cells = []


def _end_of_quoted(text: str, at: int) -> int:
    """Return where a cell ends that begins with a quotation mark; -1 for one without another."""
    at = text.find('"', at + 1)
    while text.startswith('""', at) and at >= 0:
        at = text.find('"', at + 2)
    return at + 1 if at >= 0 else -1


def read(review: Review, text: str) -> Iterator[tuple[int, float | None, str]]:
    """Yield the row, the label and the note of each line that has a label. Raises `InvalidInput` for a file of another
    review, for a line that cannot be read, and for one without the columns `row` and `label`."""
    if not isinstance(text, str) or len(text) > MAX_FILE:
        raise InvalidInput.at("file", msg=f"must be a text of at most {MAX_FILE} characters")
    every = _lines(text.removeprefix("\ufeff"))
    columns = next(every, [])
    lacking = {"row", "label"}.difference(columns)
    if lacking:
        raise InvalidInput.at("file", msg=f"lacks the column {' and '.join(sorted(lacking))}")
    lines = (dict(zip(columns, cells, strict=False)) for cells in every)
    problems, found = [], []
    for number, line in enumerate(lines, 2):
        if not (label := line.get("label", "").strip()):
            continue
        try:
            found.append((_place(review, line), label_of(review, label), _uncelled(line.get("note", ""))))
        except InvalidInput as wrong:
            problems += [Problem(("file", f"line {number}", *one.loc), one.msg) for one in wrong.problems]
    if problems:
        raise InvalidInput(problems[:100])
    yield from found


def _place(review: Review, line: Mapping[str, str]) -> int:
    text = line.get("row", "").strip()
    if line.get("review") not in (None, "", review.id):
        raise InvalidInput.at("review", msg=f"is {line['review'][:100]!r}, and labels of {review.id} are read")
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) < review.size):
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
        raise InvalidInput.at("label", msg=f"must be {what}, and is {text[:100]!r}") from None
    return review.checked(number)
