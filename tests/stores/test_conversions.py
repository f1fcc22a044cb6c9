"""Values of a record for its columns: the written-out function gives what the general one gives, for any values."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from modelyard.domain.record import Record
from modelyard.parts.contracts.store_values import Colour, Item
from modelyard.stores.columns import Projection, columns_of
from modelyard.testing import CONTRACT_RECORDS


class Shouted(str):
    """A string that shows as something else."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        return "?"


EAST = timezone(timedelta(hours=2))
VALUES: list[Any] = [
    None, True, False, 0, 7, -3, 2**63 - 1, 2**63, 2**70, 0.5, float("nan"), float("inf"), b"", b"ab", "", "a", "é",
    "\ud800", "x" * 250, "x" * 251, "é" * 501, Shouted("\ud800"), Shouted("x" * 2000), Decimal(1), Decimal("1.50"),
    Decimal("NaN"), datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 5, tzinfo=EAST), datetime(2026, 1, 1),
    Colour.RED, {"a": 1}, MappingProxyType({"a": [1]}), (1, "b"), [1], object(),
]  # fmt: skip
PROJECTIONS = [
    Projection(columns := list(columns_of(record).values()), [getattr(column.kind, way) for column in columns])
    for record in CONTRACT_RECORDS
    for way in ("keep", "dump")
]
DECLARED = [record for record in CONTRACT_RECORDS for _ in ("keep", "dump")]


class Bag:
    """Something with the fields of a record, of any type."""

    def __init__(self, record: Record, values: tuple[Any, ...]) -> None:
        self.__dict__.update(zip(columns_of(record), values, strict=True))


def outcome(convert: Any, argument: object) -> object:
    try:
        return [(type(value), value) for value in convert(argument)]
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else type(error)  # a lookup raises one that says where
        return kind, str(error).replace(": cannot be", " cannot be")


def usual(record: Record) -> list[Any]:
    """For each column a value that it takes."""
    by_type = {type(value): value for value in reversed(VALUES) if type(value) is not Shouted}
    return [by_type[column.kind.usual] for column in columns_of(record).values()]


def drawn(data: st.DataObject, record: Record) -> tuple[Any, ...]:
    """For each column a value that it takes, but for two at most, which have any value."""
    values = usual(record)
    for place in data.draw(st.lists(st.integers(0, len(values) - 1), max_size=2)):
        values[place] = data.draw(st.sampled_from(VALUES))
    return tuple(values)


@pytest.mark.slow
@pytest.mark.parametrize("at", range(len(PROJECTIONS)))
@given(data=st.data())
def test_both_ways_give_the_same(at: int, data: st.DataObject) -> None:
    projection, record = PROJECTIONS[at], DECLARED[at]
    held = drawn(data, record)
    assert outcome(projection.checked, Bag(record, held)) == outcome(projection.convert, held)

    def copied(bag: Bag) -> tuple[Any, ...]:
        return projection.copying(lambda *made: made)(bag, "the last")[:-1]  # type: ignore[no-any-return]

    assert outcome(copied, Bag(record, held)) == outcome(projection.convert, held)


@pytest.mark.slow
@pytest.mark.parametrize("at", range(len(PROJECTIONS)))
@given(data=st.data())
def test_given_values_are_converted_as_those_of_a_record(at: int, data: st.DataObject) -> None:
    projection, record = PROJECTIONS[at], DECLARED[at]
    held = drawn(data, record)
    assert outcome(projection.accept, held) == outcome(projection.convert, held)
    assert outcome(projection.accept, held[1:]) == outcome(projection.convert, held[1:])


def test_usual_values_that_do_not_change_are_the_same_tuple() -> None:
    declared = next(record for record in CONTRACT_RECORDS if record.cls is Item)
    number, text = columns_of(declared)["number"], columns_of(declared)["shelf"]
    projection, values = Projection([text, number], [text.kind.dump, number.kind.dump]), ("a", 7)
    assert projection.accept(values) is values


@pytest.mark.slow
@pytest.mark.parametrize("at", range(len(PROJECTIONS)))
@given(data=st.data())
def test_a_record_passes_for_unchanged_only_if_a_conversion_leaves_it(at: int, data: st.DataObject) -> None:
    projection, record = PROJECTIONS[at], DECLARED[at]
    held = drawn(data, record)

    def shared(bag: Bag) -> tuple[Any, ...]:
        found = projection.unchanged(lambda _: None)(bag)
        return projection.convert(held) if found is None else held

    assert outcome(shared, Bag(record, held)) == outcome(projection.convert, held)


DUMPED = range(1, len(PROJECTIONS), 2)


@pytest.mark.slow
@pytest.mark.parametrize("at", DUMPED)
@given(data=st.data())
def test_changes_are_the_converted_values_that_differ(at: int, data: st.DataObject) -> None:
    projection, record = PROJECTIONS[at], DECLARED[at]
    before, after = tuple(usual(record)), drawn(data, record)
    expected = outcome(projection.convert, after)
    if isinstance(expected, list):
        values, old = projection.convert(after), projection.convert(before)
        changed = {place: value for place, value in enumerate(values) if value != old[place]}
        assert projection.changes(Bag(record, after), Bag(record, before))[0] == changed
    else:
        with pytest.raises((TypeError, ValueError)):
            projection.changes(Bag(record, after), Bag(record, before))


@pytest.mark.slow
@pytest.mark.parametrize("at", DUMPED)
@given(data=st.data())
def test_values_are_as_given_only_if_they_are_read_as_they_are(at: int, data: st.DataObject) -> None:
    projection, record = PROJECTIONS[at], DECLARED[at]
    before, after = Bag(record, read_again(projection, record, tuple(usual(record)))), drawn(data, record)
    with suppress(TypeError, ValueError):
        if projection.changes(Bag(record, after), before)[1]:
            read = read_again(projection, record, after)
            assert [(type(value), repr(value)) for value in read] == [(type(value), repr(value)) for value in after]


def read_again(projection: Projection, record: Record, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a store returns for values that it has stored."""
    dumped = zip(projection.convert(values), columns_of(record).values(), strict=True)
    return tuple(
        value if value is None or not column.kind.load else column.kind.load(value) for value, column in dumped
    )


@each_case("at", DUMPED)
def test_usual_values_are_as_given_but_for_json(at: int) -> None:
    columns, before = columns_of(DECLARED[at]).values(), usual(DECLARED[at])
    by_type: dict[type, Any] = {str: "b", int: 8, bool: False, float: 1.5, bytes: b"c", Decimal: Decimal("2.50")}
    by_type |= {datetime: datetime(2026, 1, 2, tzinfo=UTC), Colour: Colour.BLUE}
    after = [by_type.get(column.kind.usual, value) for column, value in zip(columns, before, strict=True)]
    changed, as_given = PROJECTIONS[at].changes(Bag(DECLARED[at], tuple(after)), Bag(DECLARED[at], tuple(before)))
    assert as_given
    assert set(changed) == {place for place, column in enumerate(columns) if column.kind.usual in by_type}


@each_case("at", [at for at, record in enumerate(DECLARED) if MappingProxyType not in map(type, usual(record))][::2])
def test_a_record_of_usual_values_passes_for_unchanged(at: int) -> None:
    bag = Bag(DECLARED[at], tuple(usual(DECLARED[at])))
    assert PROJECTIONS[at].unchanged(lambda _: None)(bag) is bag


@each_case("at", [at for at, record in enumerate(DECLARED) if str in map(type, usual(record))][::2])
def test_a_kind_of_string_is_judged_by_its_characters(at: int) -> None:
    values = [Shouted("\ud800") if type(value) is str else value for value in usual(DECLARED[at])]
    with pytest.raises(ValueError, match="surrogates not allowed"):
        PROJECTIONS[at].accept(tuple(values))
