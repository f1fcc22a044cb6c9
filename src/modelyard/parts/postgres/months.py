"""Tables that are kept by months: one partition for each, by the time in the UUIDv7 that leads the key.

Each opening of a store creates the partitions of this month and of the next two, and so does a worker each day.
Whatever has no partition of its own, such as ids that are no UUIDv7, is in a default partition, so that no write fails
for want of one.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from psycopg import errors as pg

from modelyard.clock import uuid7_from
from modelyard.domain.record import Record
from modelyard.parts.postgres.pages import IndexPages, Row, Statement, quoted
from modelyard.parts.postgres.rows import RecordPlan
from modelyard.protocols import Month

_AHEAD = 3
"""Months that have a partition: the present one, and those that follow."""
_PATIENCE = 1000
"""Milliseconds to wait for the readers of a table that gets a partition; the default partition serves until then."""

_PARTS = (
    "SELECT part.relname, pg_get_expr(part.relpartbound, part.oid)"
    " FROM pg_inherits JOIN pg_class AS part ON part.oid = inhrelid"
    " WHERE inhparent = to_regclass($1) ORDER BY 1"
)
_RANGE = re.compile(r"FROM \((?:MINVALUE|'([^']*)')\) TO \('([^']*)'\)")


def by_month(plans: Iterable[RecordPlan]) -> list[RecordPlan]:
    """Return those whose tables are kept by months."""
    return [plan for plan in plans if plan.record.months]


def parts(plan: RecordPlan) -> Statement:
    """Return the statement whose rows `months_of` reads."""
    return _PARTS, (plan.table,)


def months_of(rows: Iterable[Row]) -> list[Month]:
    """Return the partitions of a table that hold a range of ids, the oldest first."""
    found = ((name, _RANGE.search(bound)) for name, bound in rows)
    months = [Month(name, range_[1] or "", range_[2]) for name, range_ in found if range_]
    return sorted(months, key=lambda month: month.first)


def page(plan: RecordPlan, schema: str, month: Month, after: Row | None, limit: int) -> Statement:
    """Return the statement of a page of a month's records, in the order of their keys."""
    key = [column for column in plan.columns if column.name in plan.record.key]
    ordered = sorted(key, key=lambda column: plan.record.key.index(column.name))
    return IndexPages(_table(schema, month), [], ordered).page(plan.selected, (), after, limit, False)


def drop(schema: str, month: Month) -> Statement:
    """Return the statement that drops a month with all its records."""
    return f"DROP TABLE IF EXISTS {_table(schema, month)}", ()


def default_part(plan: RecordPlan, schema: str) -> str:
    """Return the statement that creates the partition of what has no other."""
    return f'CREATE TABLE "{schema}"."{plan.record.table}_rest" PARTITION OF {plan.table} DEFAULT'


def missing_parts(plan: RecordPlan, schema: str, there: Sequence[Month]) -> Iterator[str]:
    """Yield the statements that create what this month and the next ones lack."""
    now = datetime.now(UTC)
    for ahead in range(_AHEAD):
        start, end = _month(now, ahead), _month(now, ahead + 1)
        first, last = uuid7_from(start), uuid7_from(end)
        if not any(month.first < last and first < month.end for month in there):
            name = f'"{schema}"."{plan.record.table}_{start:%Y_%m}"'
            yield f"CREATE TABLE {name} PARTITION OF {plan.table} FOR VALUES FROM ('{first}') TO ('{last}')"


def add_missing_parts(connection: Any, schema: str, plans: Iterable[RecordPlan]) -> None:
    """Create the partitions of this month and of the next two, as far as no one is in the way.

    A month of which the default partition has records already stays there.
    """
    for plan in by_month(plans):
        there = months_of(connection.execute(*parts(plan)).fetchall())
        for sql in missing_parts(plan, schema, there):
            with (
                suppress(pg.CheckViolation, pg.LockNotAvailable, pg.DuplicateTable, pg.InsufficientPrivilege),
                connection.transaction(),
            ):
                connection.execute(f"SET LOCAL lock_timeout TO {_PATIENCE}")
                connection.execute(sql)


def first_strays(plans: Iterable[RecordPlan], schema: str) -> str:
    """Return the statement that finds, for each table, the first record of a month in its default partition."""
    years = uuid7_from(datetime(2000, 1, 1, tzinfo=UTC)), uuid7_from(datetime(2200, 1, 1, tzinfo=UTC))
    tables = {f"{plan.record.table}_rest": plan.record.months for plan in by_month(plans)}
    return " UNION ALL ".join(
        f'(SELECT \'{table}\', "{column}" FROM "{schema}"."{table}"'  # noqa: S608 - names of declarations
        f" WHERE \"{column}\" BETWEEN '{years[0]}' AND '{years[1]}' ORDER BY 2 LIMIT 1)"
        for table, column in tables.items()
    )


def _table(schema: str, month: Month) -> str:
    return f'"{schema}"."{month.name}"'


def _month(moment: datetime, ahead: int) -> datetime:
    count = moment.year * 12 + moment.month - 1 + ahead
    return datetime(count // 12, count % 12 + 1, 1, tzinfo=UTC)


# ---- tables that were not kept by months ---------------------------------------------------------------------------

_PARTITION = """
DO $body$
DECLARE
    until timestamp := date_trunc('month', now() AT TIME ZONE 'utc') + interval '1 month';
    digits text := lpad(to_hex((extract(epoch FROM until) * 1000)::bigint), 12, '0');
    edge text := left(digits, 8) || '-' || right(digits, 4);
    former text := '{table}_before_' || to_char(until, 'YYYY_MM');
    definitions text[];
    one text;
BEGIN
    SELECT array_agg(indexdef) INTO definitions FROM pg_indexes
        WHERE schemaname = current_schema AND tablename = '{table}' AND indexname <> '{table}_pkey';
    FOR one IN SELECT indexname FROM pg_indexes WHERE schemaname = current_schema AND tablename = '{table}' LOOP
        EXECUTE format('ALTER INDEX %I RENAME TO %I', one, former || substr(one, {width}));
    END LOOP;
    EXECUTE format('ALTER TABLE "{table}" RENAME TO %I', former);
    {numbers}
    EXECUTE format(
        'CREATE TABLE "{table}" (LIKE %I INCLUDING DEFAULTS, PRIMARY KEY ({key})) PARTITION BY RANGE ("{column}")',
        former
    );
    FOREACH one IN ARRAY definitions LOOP
        EXECUTE one;
    END LOOP;
    CREATE TABLE "{table}_rest" PARTITION OF "{table}" DEFAULT;
    EXECUTE format(
        'WITH moved AS (DELETE FROM %I WHERE "{column}" >= %L RETURNING *)'
        ' INSERT INTO "{table}_rest" SELECT * FROM moved',
        former, edge
    );
    EXECUTE format('ALTER TABLE "{table}" ATTACH PARTITION %I FOR VALUES FROM (MINVALUE) TO (%L)', former, edge);
END
$body$
"""
_NUMBERS = """
    CREATE SEQUENCE "{numbers}_next";
    PERFORM setval('"{numbers}_next"', greatest(last_value, 1), is_called) FROM "{numbers}";
    EXECUTE format('ALTER TABLE %I ALTER "{sequence}" DROP IDENTITY', former);
    ALTER SEQUENCE "{numbers}_next" RENAME TO "{numbers}";
    EXECUTE format('ALTER TABLE %I ALTER "{sequence}" SET DEFAULT nextval(%L)', former, '"{numbers}"');
"""


def partitioning(record: Record) -> Iterator[str]:
    """Yield the statements that make the table of a class the first partition of one with its name, in the search path.

    Its rows stay where they are; they are read once, to see that they fit. The months that follow get their own.
    """
    table, sequence = record.table, record.sequence
    numbers = f"{table}_{sequence}_seq"
    yield _PARTITION.format(
        table=table,
        column=record.months,
        width=len(table) + 1,
        key=quoted(record.key),
        numbers=_NUMBERS.format(numbers=numbers, sequence=sequence) if sequence else "",
    )
    if sequence:
        yield f'ALTER SEQUENCE "{numbers}" OWNED BY "{table}"."{sequence}"'
