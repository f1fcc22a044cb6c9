"""Changes of the core's tables between versions, which every store that keeps tables renders in its own SQL.

The list only grows, at its end. A change that adds with a default leaves servers of the version before able to run
until they restart; no change rewrites what a column means.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

from modelyard.domain.completion import StoredCompletion
from modelyard.domain.evaluation.run import EvaluationRun, Score
from modelyard.domain.identity import AnsweredRequest, ApiKey, BrowserSession, DeletedEntity
from modelyard.domain.job import Demand, Job, JobEvent, JobProgress, Tenant
from modelyard.domain.models import TrajectoryLog
from modelyard.domain.usage import Budget, LedgerEntry
from modelyard.domain.worker import WorkerProcess, WorkerRecord
from modelyard.lazy import deferred
from modelyard.part import Part, standard_parts
from modelyard.stores.table_changes import AddColumn, AddIndex, AddTable, DropIndex, KeepByMonth, SchemaChange

_OF_THE_QUEUE = [("held_back", str, ""), ("not_before", datetime, None), ("refusals", int, 0), ("rank", int, 0)]
_NEEDS = ("kind", "base_model", "accelerators", "memory")

CORE: tuple[SchemaChange, ...] = (
    SchemaChange("0010_checkpoints_of_completions", [AddColumn(StoredCompletion, "checkpoint_id", str)]),
    SchemaChange("0011_answered_requests", [AddTable(AnsweredRequest)]),
    SchemaChange("0012_browser_sessions", [AddTable(BrowserSession)]),
    SchemaChange(
        "0013_budget_periods",
        [
            AddColumn(Budget, "period", str, "total"),
            AddColumn(Budget, "since", str, ""),
            AddColumn(Budget, "warn_at", str),
            AddColumn(Budget, "warned", bool, False),
        ],
    ),
    SchemaChange("0014_host_keys", [AddColumn(ApiKey, "host", bool, False)]),
    SchemaChange(
        "0015_accelerators_of_jobs",
        [
            AddColumn(Job, "accelerators", int, 0),
            AddColumn(Job, "memory", int, 0),
            DropIndex(Job, "by_needs"),
            AddIndex(Job, "by_needs", ["place", *_NEEDS, "seq"]),
        ],
    ),
    SchemaChange("0016_jobs_by_state", [AddIndex(Job, "by_state", ["status"])]),
    SchemaChange("0017_comments_of_scores", [AddColumn(Score, "comment", str)]),
    SchemaChange(
        "0020_events_by_month",
        [
            DropIndex(JobEvent, "unique_id"),
            AddIndex(JobEvent, "unique_id", ["job_id", "id"], unique=True),
            KeepByMonth(JobEvent),
        ],
    ),
    SchemaChange("0021_ledger_by_month", [KeepByMonth(LedgerEntry)]),
    SchemaChange(
        "0031_worker_processes",
        [
            AddTable(WorkerProcess),
            AddColumn(WorkerRecord, "process_id", str, ""),
            AddIndex(WorkerRecord, "by_process", ["process_id", "id"]),
        ],
    ),
    SchemaChange("0033_paused_jobs", [AddColumn(JobProgress, "paused_by", str, "")]),
    SchemaChange(
        "0038_shares_of_entities",
        [
            *(AddColumn(Job, name, kind, default) for name, kind, default in _OF_THE_QUEUE),
            AddTable(Tenant),
            DropIndex(Job, "by_needs"),
            AddIndex(Job, "by_needs", ["place", "entity", *_NEEDS, "rank", "seq"]),
        ],
    ),
    SchemaChange(
        "0039_demands_of_entities",
        [
            AddTable(Demand),
            DropIndex(Tenant, "by_turn"),
            AddColumn(WorkerRecord, "accelerators", int),
            AddColumn(WorkerRecord, "memory", int),
        ],
    ),
    SchemaChange(
        "0040_indexes_of_today",
        [
            AddIndex(EvaluationRun, "by_all", ["seq"]),
            DropIndex(Job, "by_state"),
            AddIndex(Job, "by_state", ["status", "seq"]),
            AddIndex(StoredCompletion, "by_age", ["created_at", "seq"]),
            AddIndex(TrajectoryLog, "by_age", ["created_at", "seq"]),
        ],
    ),
    SchemaChange("0041_deleted_entities", [AddTable(DeletedEntity)]),
    SchemaChange("0042_jobs_of_kinds", [AddIndex(Job, "by_of_kind", ["kind", "seq"])]),
)
"""Every change of the core since the stores share them, oldest first."""


def changes_of(parts: Iterable[Part]) -> Sequence[SchemaChange]:
    """Return the changes of the core and of these parts."""
    return [*CORE, *(change for part in parts for change in part.changes())]


CHANGES: Sequence[SchemaChange] = deferred(lambda: tuple(changes_of(standard_parts())))
"""The changes of the core and of the standard parts."""
