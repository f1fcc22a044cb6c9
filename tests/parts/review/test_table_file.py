"""Labels as CSV: what is written is read as it was, and what cannot be read is refused where it is."""

import csv
import io
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from modelyard import Platform
from modelyard.errors import InvalidInput
from modelyard.parts.review import table_file
from modelyard.parts.review.labels import RowToLabel
from modelyard.parts.review.records import YES_OR_NO, Review

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def review(choices: tuple[float, ...] = (), size: int = 20) -> Review:
    return Review("r1", "acme", "p", "run", "scorer:v0", 100, size, 0, "ann", NOW, choices)


texts = st.text(st.one_of(st.sampled_from("'=+-@\t\r\n\",; a"), st.characters(exclude_categories=["Cs"])))
said = st.tuples(st.none() | st.floats(allow_nan=False, allow_infinity=False), texts, texts)


@given(st.lists(said, max_size=20))
def test_what_is_written_is_read_as_it_was(given_labels: list[tuple[float | None, str, str]]) -> None:
    rows = [
        RowToLabel(at, {"prompt": text}, text, True, value, note) for at, (value, text, note) in enumerate(given_labels)
    ]
    found = list(table_file.read(review(), table_file.written(review(), rows)))
    assert found == [(row.place, row.value, row.note) for row in rows]


@given(st.lists(said, min_size=1, max_size=5))
def test_other_programs_read_the_same(given_labels: list[tuple[float | None, str, str]]) -> None:
    rows = [RowToLabel(at, {}, text, True, value, note) for at, (value, text, note) in enumerate(given_labels)]
    lines = list(csv.reader(io.StringIO(table_file.written(review(), rows), newline="")))
    assert [line[3].removeprefix("'") for line in lines[1:]] == [row.output.removeprefix("'") for row in rows]
    file = io.StringIO()
    csv.writer(file).writerows(lines)
    assert list(table_file.read(review(), file.getvalue())) == [(row.place, row.value, row.note) for row in rows]


def test_cells_may_be_long() -> None:
    limit = csv.field_size_limit()
    rows = [RowToLabel(at, {"prompt": "p" * 200_000}, "o" * 200_000, True, 1.0) for at in range(2)]
    assert len(list(table_file.read(review(YES_OR_NO), table_file.written(review(YES_OR_NO), rows)))) == 2
    assert csv.field_size_limit() == limit


WRONG: tuple[tuple[object, tuple[str, ...]], ...] = (
    (f"row,label\n{'1' * 5000},yes\n", ("file", "line 2", "row")),
    (f"row,label\n0,{'1' * 5000}\n", ("file", "line 2", "value")),
    ('row,label\n0,"yes\n', ("file", "line 2")),
    ("row,label\n" + "," * 5000, ("file", "line 2")),
    ("row,label\n" + "0,\n" * 30_000, ("file", "line 20001")),
    ("row,label\n\n\r\n0,\n,yes\n", ("file", "line 3", "row")),
    ("row,label\n,yes\n", ("file", "line 2", "row")),
    ("label\nyes\n", ("file",)),
    ("", ("file",)),
    (b"row,label\n0,yes\n", ("file",)),
    (None, ("file",)),
)


@each_case("wrong", WRONG, ids=lambda one: f"{str(one[0])[:20]!r} {one[1]}")
def test_what_cannot_be_read_is_refused(wrong: tuple[str, tuple[str, ...]]) -> None:
    with pytest.raises(InvalidInput) as told:
        list(table_file.read(review(YES_OR_NO), wrong[0]))
    assert [one.loc for one in told.value.problems] == [wrong[1]]


def test_an_unchanged_file_of_somebody_who_is_done_changes_nothing(platform: Platform) -> None:
    run = platform.evaluations.run("lengths", "echo", [{"prompt": "a"}, {"prompt": "bbb"}], lambda output, _: 0.5)
    made = platform.review.start(run)
    for place, (value, note) in enumerate([(1 / 3, "'=x"), (1234567.25, "=x")]):
        platform.review.label(made.id, "ann", place, value, note)
    assert platform.review.read_csv(made.id, "ann", platform.review.write_csv(made.id, "ann")) == 2
    assert [(row.value, row.note) for row in platform.review.rows(made.id, "ann")] == [
        (1 / 3, "'=x"),
        (1234567.25, "=x"),
    ]
