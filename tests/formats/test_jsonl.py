"""Rows as JSON Lines: what is written is read back, row by row."""

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard.errors import InvalidInput
from modelyard.formats.jsonl import dump_row, read_dumped, read_rows

VALUES = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
ROWS = st.lists(st.dictionaries(st.text(max_size=5), VALUES | st.text() | st.lists(VALUES), max_size=4), max_size=5)


@given(rows=ROWS)
def test_rows_that_were_written_are_read_back_by_their_indexes(rows: list[dict[str, Any]]) -> None:
    file = b"".join(dump_row(row, number) for number, row in enumerate(rows))
    assert list(read_rows(io.BytesIO(file))) == rows
    assert list(read_dumped(io.BytesIO(file), lambda _: True)) == list(enumerate(rows))
    assert [index for index, _ in read_dumped(io.BytesIO(file), lambda index: index % 2 == 1)] == list(
        range(1, len(rows), 2)
    )


def test_a_damaged_line_is_named() -> None:
    file = io.BytesIO(dump_row({"a": 1}, 0) + b'{"a": \n')
    with pytest.raises(InvalidInput, match="damaged") as raised:
        list(read_dumped(file, lambda _: True))
    assert raised.value.problems[0].loc == ("line", 2)
