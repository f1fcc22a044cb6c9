"""The function that is written out for a class makes the record that was written."""

from datetime import UTC, datetime

import pytest
from hypothesis import given

from each import each_case
from modelyard.domain.job import RECORDS, JobEvent
from modelyard.domain.record import Record
from modelyard.errors import StoreCorrupt
from modelyard.parts.contracts.store_values import CONTRACT_RECORDS, Specimen, specimens
from modelyard.stores.columns import Projection, columns_of
from modelyard.stores.row_reading import Row, record_function

SPECIMEN = CONTRACT_RECORDS[0]
EVENT = next(record for record in RECORDS if record.cls is JobEvent)


def damaged(error: Exception) -> StoreCorrupt:
    return StoreCorrupt(repr(error))


def row_of(declared: Record, record: object) -> Row:
    columns = list(columns_of(declared).values())
    general = Projection(columns, [column.kind.dump for column in columns])
    return general.accept(general.raw(record))


def record_of(declared: Record, row: Row) -> object:
    return record_function(declared.cls, list(columns_of(declared).values()), damaged)(row)


@pytest.mark.slow
@given(specimens)
def test_a_row_becomes_its_record_again(specimen: Specimen) -> None:
    assert record_of(SPECIMEN, row_of(SPECIMEN, specimen)) == specimen


@each_case(
    ("column", "value"), [("colour", "mauve"), ("price", "much"), ("at", "later"), ("names", "["), ("names", "")]
)
def test_a_row_that_no_record_has_written_is_damage(column: str, value: str) -> None:
    row = list(row_of(SPECIMEN, Specimen("a")))
    row[list(columns_of(SPECIMEN)).index(column)] = value
    with pytest.raises(StoreCorrupt):
        record_of(SPECIMEN, tuple(row))


def test_fields_may_have_the_names_of_builtins() -> None:
    event = JobEvent("job", 1, "event", "gradient_step", 1, {"loss": 0.5}, datetime(2026, 1, 1, tzinfo=UTC))
    assert record_of(EVENT, row_of(EVENT, event)) == event
