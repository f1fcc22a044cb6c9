"""What a store has had: the names of the changes that it went through, and the tables that were made in it.

Both are sets on record in the store, since parts of a platform come and go, each with records and changes of its own.

* A declared table that the store never had is made from its class as it is now. One that was made and is missing is
  corruption.
* A change of the core has a plain name, such as "0022_responses"; one that this version does not know is of a newer
  version, and the store is refused. The names of `BEFORE` are known whatever parts are open.
* A change of a part has the part's name in front: "notes/0001_titles". An unknown one is of a newer version if the part
  is open, and else it is left alone, as the part's tables are.
* A change whose classes are not declared is not run and not recorded: it waits until they are.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol, Self, TypeVar

import attrs

from modelyard.domain.record import Record
from modelyard.errors import StoreCorrupt, StoreTooNew
from modelyard.stores.table_changes import INITIAL

MIGRATIONS = "modelyard_migrations"
"""The table of the names of the changes that were made."""
TABLES = "modelyard_tables"
"""The table of the names of the tables that were made."""

BEFORE: Mapping[str, str] = {
    INITIAL: "catalogue_entries catalogue_revisions stored_completions api_keys ledger usage_totals budgets admissions"
    " jobs job_progress job_events superseded_events workers uploads models checkpoints tombstones trajectory_logs"
    " datasets retentions aliases promotions evaluation_runs predictions scores object_aliases object_versions"
    " base_models",
    **dict.fromkeys(("0002_rows_of_scores", "0003_values_by_row", "0004_needs_of_jobs", "0005_owners_and_rates"), ""),
    **dict.fromkeys(("0006_losses_of_jobs", "0007_loose_artifacts", "0008_order_of_appearance"), ""),
    **dict.fromkeys(("0009_trained_tokens", "0010_checkpoints_of_completions"), ""),
    "0011_answered_requests": "answered_requests",
    "0012_browser_sessions": "browser_sessions",
    **dict.fromkeys(("0013_budget_periods", "0014_host_keys", "0015_accelerators_of_jobs", "0016_jobs_by_state"), ""),
    "0017_comments_of_scores": "",
    "0018_files": "files",
    "0019_annotations": "annotations",
    **dict.fromkeys(("0020_events_by_month", "0021_ledger_by_month"), ""),
    "0022_responses": "responses",
    "0030_traces": "traced_calls feedback traced_rows traced_tables traced_files",
    "0031_worker_processes": "worker_processes",
    **dict.fromkeys(("0032_outcomes_of_calls", "0033_paused_jobs"), ""),
    "0034_training_runs": "run_sessions training_runs run_commands run_weights samplers samples",
    **dict.fromkeys(("0035_stages_of_sessions", "0036_newest_of_the_ledger", "0037_sums_of_the_newest"), ""),
}
"""The changes from before tables were recorded, each with the tables that it made. It never grows."""


UNFINISHED = "copy/unfinished"
"""The mark of a store that gets a copy, among the names of its changes: only what copies knows it. Its number is -1
once one has begun."""


class NamedChange(Protocol):
    """A change of tables, of every store or of one kind."""

    @property
    def name(self) -> str:
        """Its name, which a store keeps."""

    @property
    def classes(self) -> frozenset[type]:
        """The classes that it names. One that names none is run in every store."""


C = TypeVar("C", bound=NamedChange)


def part_of(name: str) -> str:
    """Return the part of a platform to which a change of this name belongs; "" is the core."""
    return name.rpartition("/")[0]


def parts_of(changes: Iterable[NamedChange]) -> set[str]:
    """Return the parts to which changes belong, and the core."""
    return {"", *(part_of(change.name) for change in changes)}


def first_names(changes: Iterable[NamedChange]) -> list[str]:
    """Return what a new store has on record: `INITIAL`, after the mark of a copy if it is made for one."""
    return [UNFINISHED] * any(change.name == UNFINISHED for change in changes) + [INITIAL]


def unknown_changes(names: Iterable[str], changes: Iterable[NamedChange]) -> list[str]:
    """Return which of the names of a store's changes are not known. Raises `StoreTooNew` for those of what is open."""
    changes = [*changes]
    unknown = {*names} - BEFORE.keys() - {change.name for change in changes}
    if UNFINISHED in unknown:
        told = "after `modelyard restore`, drop it, make it again and restore again"
        raise StoreCorrupt(
            f"the store is a copy that was not completed: run `modelyard copy` again, or remove it; {told}"
        )
    newer = sorted(name for name in unknown if part_of(name) in parts_of(changes))
    if newer:
        raise StoreTooNew(f"the store has migrations that this version does not know: {newer}")
    return sorted(unknown)


def lost_tables(names: Sequence[str]) -> StoreCorrupt:
    return StoreCorrupt(f"the store has lost the tables {[*names]}; restore a backup")


@attrs.frozen
class TableHistory:
    """The names of the changes that a store went through, and of the tables that were made in it."""

    changes: frozenset[str]
    tables: frozenset[str]

    @classmethod
    def of(
        cls, names: Iterable[str], made: Iterable[str] | None, there: AbstractSet[str], records: Iterable[Record]
    ) -> Self:
        """Read it. `made` is None in a store from before tables were recorded; `there` is what it has now.

        Raises `StoreCorrupt` for a declared table that was made and is missing.
        """
        changes = frozenset(names)
        if made is None:
            before = {table for name in changes for table in BEFORE.get(name, "").split()}
            made = () if before.isdisjoint(there) else before  # it may be a store for other records
        tables = frozenset(made)
        declared = {record.table for record in records}
        lost = sorted((tables & declared) - there)
        if lost:
            raise lost_tables(lost)
        return cls(changes, tables | (declared & there))

    def lacking(self, changes: Iterable[C], records: Mapping[type, Record]) -> list[C]:
        """Return the changes that the store lacks, of those that name declared classes, in their order."""
        return [
            change
            for change in changes
            if change.name not in {*self.changes, UNFINISHED}
            and (not change.classes or not change.classes.isdisjoint(records))
        ]


def refuse_other_columns(
    found: Mapping[str, AbstractSet[str]], declared: Mapping[str, AbstractSet[str]], unknown: Sequence[str]
) -> None:
    """Raise `StoreCorrupt` if a table does not have the declared columns, as after a forgotten change.

    It is `StoreTooNew` if there are `unknown` changes: a part that had none may have got them.
    """
    for table, columns in declared.items():
        differing = sorted(found.get(table, frozenset()) ^ columns)
        if differing and unknown:
            raise StoreTooNew(f"the table {table} differs in its columns {differing}; not known here: {unknown}")
        if differing:
            raise StoreCorrupt(f"the table {table} differs in its columns {differing}")
