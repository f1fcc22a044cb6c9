"""Changes of the tables between versions, which every store that keeps tables renders in its own SQL.

The list only grows, at its end: a file remembers how far it has come. A change that adds with a default leaves servers
of the version before able to run until they restart; no change rewrites what a column means.
"""

from datetime import datetime

from modelyard.parts.tinker.changes import STAGES, TRAINING_RUNS
from modelyard.parts.traces.changes import OUTCOMES, TRACES
from modelyard.stores.table_changes import AddColumn, AddIndex, AddTable, DropIndex, KeepByMonth, SchemaChange

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
    TRACES,
    SchemaChange(
        "0031_worker_processes",
        "jobs",
        [
            AddTable("worker_processes", {"id": str, "beat": int, "process": str}, ["id"]),
            AddColumn("workers", "process_id", str, ""),
            AddIndex("workers", "workers_by_process", ["process_id", "id"]),
        ],
    ),
    OUTCOMES,
    SchemaChange("0033_paused_jobs", "job_progress", [AddColumn("job_progress", "paused_by", str, "")]),
    TRAINING_RUNS,
    STAGES,
)
"""Every change since the stores share them, oldest first."""
