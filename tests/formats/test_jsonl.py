"""Rows as JSON Lines: what is written is read back, row by row."""

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard.errors import InvalidInput
from modelyard.formats import jsonl
from modelyard.formats.jsonl import dump_row, lines_of, read_dumped, read_rows

VALUES = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
ROWS = st.lists(st.dictionaries(st.text(max_size=5), VALUES | st.text() | st.lists(VALUES), max_size=4), max_size=5)


@pytest.mark.slow
@given(rows=ROWS)
def test_rows_that_were_written_are_read_back_by_their_indexes(rows: list[dict[str, Any]]) -> None:
    file = b"".join(dump_row(row, number) for number, row in enumerate(rows))
    assert list(read_rows(io.BytesIO(file))) == rows
    assert [(at, row) for at, row, _ in read_dumped(io.BytesIO(file), lambda _: True)] == list(enumerate(rows))
    assert [index for index, _, _ in read_dumped(io.BytesIO(file), lambda index: index % 2 == 1)] == list(
        range(1, len(rows), 2)
    )


def test_a_damaged_line_is_named() -> None:
    file = io.BytesIO(dump_row({"a": 1}, 0) + b'{"a": \n')
    with pytest.raises(InvalidInput, match="damaged") as raised:
        list(read_dumped(file, lambda _: True))
    assert raised.value.problems[0].loc == ("line", 2)


TEXTS = st.lists(
    st.sampled_from([b"a", b"{}", b" ", b"\t", b"\r", b"\n", b"\n\n\n", b"bcdefgh", b"\x0b"]), max_size=30
).map(b"".join)


@given(text=TEXTS, chunk=st.integers(1, 7), longest=st.integers(1, 9))
def test_lines_are_those_that_a_file_has_but_for_blank_ones(text: bytes, chunk: int, longest: int) -> None:
    """Blanks before the first character of a line may be left out with the lines before it."""
    expected = []
    for number, line in enumerate(io.BytesIO(text), 1):
        if line.strip():
            expected.append((number, line.rstrip()[: longest + 1] if len(line) > longest else line))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonl, "CHUNK", chunk)
        found = list(lines_of(io.BytesIO(text), longest))
    for (number, line), (true_number, true_line) in zip(found, expected, strict=False):
        assert number == true_number
        assert true_line.endswith(line) or len(line) == longest + 1
        if len(line) > longest:
            return
        assert line.strip() == true_line.strip()
    assert len(found) == len(expected)


class CountedFile(io.BytesIO):
    """A file that counts how much was read."""

    count = 0

    def read(self, size: int | None = -1, /) -> bytes:
        got = super().read(size)
        self.count += len(got)
        return got


def test_a_line_without_end_is_not_read_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "CHUNK", 10)
    monkeypatch.setattr(jsonl, "MAX_ROW", 100)
    file = CountedFile(b'{"a": "' + b"x" * 10_000)
    assert [(number, len(line)) for number, line in lines_of(file, 100)] == [(1, 101)]
    assert file.count <= 120


def test_blank_lines_take_no_step_each(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []

    class Counting:
        @staticmethod
        def search(*of: object) -> object:
            steps.append(1)
            return pattern.search(*of)  # type: ignore[arg-type, call-overload]

    pattern = jsonl._NOT_BLANK
    monkeypatch.setattr(jsonl, "_NOT_BLANK", Counting)
    assert list(lines_of(io.BytesIO(b"\n \n" * 2**20 + b"a"))) == [(2**21 + 1, b"a")]
    assert len(steps) < 100
