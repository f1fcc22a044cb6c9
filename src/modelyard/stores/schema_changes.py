"""Changes of the tables between versions, which every store that keeps tables renders in its own SQL.

The list only grows. A change that adds with a default leaves servers of the version before able to run until they
restart; no change rewrites what a column means.
"""

# ruff: noqa: S608 - the names and the expressions come from this module

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime

import attrs

INITIAL = "0001_initial"
"""The name under which the creation of the declared tables is recorded."""


def sql_literal(value: object) -> str:
    """Return a string, a number or a boolean as standard SQL has it."""
    if isinstance(value, str):
        return "'{}'".format(value.replace("'", "''"))
    return repr(value).lower()


@attrs.frozen
class Dialect:
    """How a store writes SQL: its types, its name for a table or an index, and its literals.

    `orders_nulls` is whether an index says where None sorts, as it must where that is not first. `implied` is the
    column with which every index ends without saying so: the sequence, where it is a table's own key. `sequence` is the
    type of a sequence. `by_month` returns the statements that partition a table, from its name, the column, the key and
    the sequence; None where a store keeps a table in one piece.
    """

    types: Mapping[type, str]
    name: Callable[[str], str]
    literal: Callable[[object], str]
    orders_nulls: bool = False
    implied: str = ""
    sequence: str = "INTEGER"
    by_month: Callable[[str, str, Sequence[str], str | None], Iterable[str]] | None = None


@attrs.frozen
class AddColumn:
    """Add a column of a type that `Dialect.types` has. Without a default it may be None, and is."""

    table: str
    column: str
    type: type
    default: object = None

    def sql(self, dialect: Dialect) -> Iterator[str]:
        """Yield the statements of the change."""
        default = "" if self.default is None else f" NOT NULL DEFAULT {dialect.literal(self.default)}"
        yield f'ALTER TABLE {dialect.name(self.table)} ADD COLUMN "{self.column}" {dialect.types[self.type]}{default}'


@attrs.frozen
class AddTable:
    """Add a table; only the columns in `nullable` may be None. `sequence` names the column of a record's sequence."""

    table: str
    columns: Mapping[str, type]
    key: Sequence[str]
    nullable: frozenset[str] = frozenset()
    sequence: str = ""

    def sql(self, dialect: Dialect) -> Iterator[str]:
        """Yield the statements of the change."""
        columns = [
            f'"{name}" {dialect.types[type_]}{"" if name in self.nullable else " NOT NULL"}'
            for name, type_ in self.columns.items()
        ]
        key = ", ".join(f'"{name}"' for name in self.key)
        strict = "" if dialect.orders_nulls else " STRICT"
        counted = self.sequence and self.sequence == dialect.implied
        if self.sequence:
            columns.append(f'"{self.sequence}" {dialect.sequence}')
        primary = f'"{self.sequence}"' if counted else key
        yield f"CREATE TABLE {dialect.name(self.table)} ({', '.join(columns)}, PRIMARY KEY ({primary})){strict}"
        if counted:
            yield f'CREATE UNIQUE INDEX "{self.table}_unique_key" ON {dialect.name(self.table)} ({key})'


@attrs.frozen
class AddIndex:
    """Add an index. `nullable` are those of its columns that may be None, which sorts first."""

    table: str
    name: str
    columns: Sequence[str]
    unique: bool = False
    nullable: frozenset[str] = frozenset()

    def sql(self, dialect: Dialect) -> Iterator[str]:
        """Yield the statements of the change."""
        columns = [
            f'"{name}"{" NULLS FIRST" if dialect.orders_nulls and name in self.nullable else ""}'
            for name in self.columns
            if name != dialect.implied
        ]
        kind = "UNIQUE INDEX" if self.unique else "INDEX"
        yield f'CREATE {kind} "{self.name}" ON {dialect.name(self.table)} ({", ".join(columns)})'


@attrs.frozen
class DropIndex:
    """Drop an index."""

    table: str
    name: str

    def sql(self, dialect: Dialect) -> Iterator[str]:
        """Yield the statements of the change."""
        yield f"DROP INDEX {dialect.name(self.name)}"


@attrs.frozen
class Fill:
    """Set a column to an expression over the row, in SQL that every store understands."""

    table: str
    column: str
    expression: str

    def sql(self, dialect: Dialect) -> Iterator[str]:
        """Yield the statements of the change."""
        yield f'UPDATE {dialect.name(self.table)} SET "{self.column}" = {self.expression}'


@attrs.frozen
class KeepByMonth:
    """Partition a table by the months in the UUIDv7 of a column, where a store does that (`Dialect.by_month`).

    What is in the table becomes the first partition; `sequence` is the column that numbers its records.
    """

    table: str
    column: str
    key: Sequence[str]
    sequence: str | None = None

    def sql(self, dialect: Dialect) -> Iterator[str]:
        """Yield the statements of the change."""
        if dialect.by_month is not None:
            yield from dialect.by_month(self.table, self.column, self.key, self.sequence)


@attrs.frozen
class SchemaChange:
    """A named change of tables. A store for other records, which lacks the table `of`, skips it."""

    name: str
    of: str
    parts: Sequence[AddColumn | AddTable | AddIndex | DropIndex | Fill | KeepByMonth]

    def sql(self, dialect: Dialect) -> Iterator[str]:
        """Yield the statements of the change, in their order."""
        for part in self.parts:
            yield from part.sql(dialect)


_ANSWERED = "answered_requests"
_SESSIONS = "browser_sessions"
_FILES = "files"
_ANNOTATIONS = "annotations"

CHANGES: tuple[SchemaChange, ...] = (
    SchemaChange(
        "0010_checkpoints_of_completions",
        "stored_completions",
        [AddColumn("stored_completions", "checkpoint_id", str)],
    ),
    SchemaChange(
        "0011_answered_requests",
        "ledger",
        [
            AddTable(
                _ANSWERED, {"id": str, "entity": str, "request": str, "answer": str, "answered_at": float}, ["id"]
            ),
            AddIndex(_ANSWERED, f"{_ANSWERED}_by_age", ["answered_at", "id"]),
            AddIndex(_ANSWERED, f"{_ANSWERED}_by_entity", ["entity", "id"]),
        ],
    ),
    SchemaChange(
        "0012_browser_sessions",
        "api_keys",
        [
            AddTable(
                _SESSIONS,
                {
                    "id": str,
                    "key_id": str,
                    "name": str,
                    "entity": str,
                    "projects": str,
                    "host": bool,
                    "expires_at": datetime,
                    "requests_per_minute": int,
                    "concurrent_requests": int,
                },
                ["id"],
                nullable=frozenset({"requests_per_minute", "concurrent_requests"}),
            ),
            AddIndex(_SESSIONS, f"{_SESSIONS}_by_entity", ["entity", "id"]),
            AddIndex(_SESSIONS, f"{_SESSIONS}_by_expiry", ["expires_at", "id"]),
        ],
    ),
    SchemaChange(
        "0013_budget_periods",
        "budgets",
        [
            AddColumn("budgets", "period", str, "total"),
            AddColumn("budgets", "since", str, ""),
            AddColumn("budgets", "warn_at", str),
            AddColumn("budgets", "warned", bool, False),
        ],
    ),
    SchemaChange("0014_host_keys", "api_keys", [AddColumn("api_keys", "host", bool, False)]),
    SchemaChange(
        "0015_accelerators_of_jobs",
        "jobs",
        [
            AddColumn("jobs", "accelerators", int, 0),
            AddColumn("jobs", "memory", int, 0),
            DropIndex("jobs", "jobs_by_needs"),
            AddIndex("jobs", "jobs_by_needs", ["place", "kind", "base_model", "accelerators", "memory", "seq"]),
        ],
    ),
    SchemaChange("0016_jobs_by_state", "jobs", [AddIndex("jobs", "jobs_by_state", ["status"])]),
    SchemaChange("0017_comments_of_scores", "scores", [AddColumn("scores", "comment", str)]),
    SchemaChange(
        "0018_files",
        "jobs",
        [
            AddTable(
                _FILES,
                {
                    **dict.fromkeys(("id", "entity", "project", "filename", "purpose"), str),
                    "size": int,
                    "created_at": datetime,
                    "expires_at": datetime,
                    "parts": str,
                },
                ["id"],
            ),
            AddIndex(_FILES, f"{_FILES}_by_all", ["created_at", "id"]),
            AddIndex(_FILES, f"{_FILES}_by_entity", ["entity", "created_at", "id"]),
            AddIndex(_FILES, f"{_FILES}_by_project", ["entity", "project", "created_at", "id"]),
            AddIndex(_FILES, f"{_FILES}_by_expiry", ["expires_at", "id"]),
        ],
    ),
    SchemaChange(
        "0019_annotations",
        "jobs",
        [
            AddTable(
                _ANNOTATIONS,
                {
                    "subject": str,
                    "kind": str,
                    "entity": str,
                    "project": str,
                    "tags": str,
                    "note": str,
                    "updated_at": datetime,
                },
                ["subject"],
                nullable=frozenset({"updated_at"}),
            ),
            AddIndex(_ANNOTATIONS, f"{_ANNOTATIONS}_by_all", ["kind", "subject"]),
            AddIndex(_ANNOTATIONS, f"{_ANNOTATIONS}_by_entity", ["entity", "subject"]),
            AddIndex(_ANNOTATIONS, f"{_ANNOTATIONS}_by_kind", ["entity", "kind", "subject"]),
        ],
    ),
    SchemaChange(
        "0020_events_by_month",
        "job_events",
        [
            DropIndex("job_events", "job_events_unique_id"),
            AddIndex("job_events", "job_events_unique_id", ["job_id", "id"], unique=True),
            KeepByMonth("job_events", "job_id", ["job_id", "seq"]),
        ],
    ),
    SchemaChange("0021_ledger_by_month", "ledger", [KeepByMonth("ledger", "id", ["id"], "seq")]),
    SchemaChange(
        "0022_responses",
        "ledger",
        [
            AddTable(
                "responses",
                {
                    **dict.fromkeys(("id", "entity", "project", "model", "status", "input", "output"), str),
                    **dict.fromkeys(("parameters", "metadata", "usage", "previous_id", "reason", "error"), str),
                    **dict.fromkeys(("completion_id", "price", "checkpoint_id", "job_id"), str),
                    **dict.fromkeys(("created_at", "completed_at"), datetime),
                },
                ["id"],
                nullable=frozenset({"completed_at", "checkpoint_id"}),
                sequence="seq",
            ),
            AddIndex("responses", "responses_by_entity", ["entity", "seq"]),
            AddIndex("responses", "responses_by_project", ["entity", "project", "seq"]),
        ],
    ),
)
"""Every change since the stores share them, oldest first."""
