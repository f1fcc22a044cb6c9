"""Changes of the core's tables between versions, which every store that keeps tables renders in its own SQL.

The list only grows, at its end. A change that adds with a default leaves servers of the version before able to run
until they restart; no change rewrites what a column means.
"""

from modelyard.domain.completion import StoredCompletion
from modelyard.domain.evaluation.prediction import Score
from modelyard.domain.idempotency import AnsweredRequest
from modelyard.domain.identity import ApiKey, BrowserSession
from modelyard.domain.job import Job, JobEvent, JobProgress
from modelyard.domain.usage import Budget, LedgerEntry
from modelyard.domain.worker import WorkerProcess, WorkerRecord
from modelyard.parts.annotations.records import Annotation
from modelyard.parts.batches.files.records import StoredFile
from modelyard.parts.responses.records import ModelResponse
from modelyard.parts.tinker.records import RunCommand, RunSession, RunWeights, Sample, SamplingSession, TrainingRun
from modelyard.parts.traces.records import Feedback, TracedCall, TracedFile, TracedRow, TracedTable
from modelyard.stores.table_changes import (
    AddColumn,
    AddIndex,
    AddTable,
    DropIndex,
    Fill,
    KeepByMonth,
    SchemaChange,
)

CHANGES: tuple[SchemaChange, ...] = (
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
            AddIndex(Job, "by_needs", ["place", "kind", "base_model", "accelerators", "memory", "seq"]),
        ],
    ),
    SchemaChange("0016_jobs_by_state", [AddIndex(Job, "by_state", ["status"])]),
    SchemaChange("0017_comments_of_scores", [AddColumn(Score, "comment", str)]),
    SchemaChange("0018_files", [AddTable(StoredFile)]),
    SchemaChange("0019_annotations", [AddTable(Annotation)]),
    SchemaChange(
        "0020_events_by_month",
        [
            DropIndex(JobEvent, "unique_id"),
            AddIndex(JobEvent, "unique_id", ["job_id", "id"], unique=True),
            KeepByMonth(JobEvent),
        ],
    ),
    SchemaChange("0021_ledger_by_month", [KeepByMonth(LedgerEntry)]),
    SchemaChange("0022_responses", [AddTable(ModelResponse)]),
    SchemaChange("0030_traces", [*map(AddTable, (TracedCall, Feedback, TracedRow, TracedTable, TracedFile))]),
    SchemaChange(
        "0031_worker_processes",
        [
            AddTable(WorkerProcess),
            AddColumn(WorkerRecord, "process_id", str, ""),
            AddIndex(WorkerRecord, "by_process", ["process_id", "id"]),
        ],
    ),
    SchemaChange(
        "0032_outcomes_of_calls",
        [
            AddColumn(TracedCall, "outcome", str, ""),
            Fill(
                TracedCall,
                "outcome",
                "CASE WHEN ended_at IS NULL THEN 'running' WHEN exception IS NULL THEN 'success' ELSE 'error' END",
            ),
            AddIndex(TracedCall, "by_outcome", ["entity", "project", "outcome", "started_at", "seq"]),
        ],
    ),
    SchemaChange("0033_paused_jobs", [AddColumn(JobProgress, "paused_by", str, "")]),
    SchemaChange(
        "0034_training_runs",
        [*map(AddTable, (RunSession, TrainingRun, RunCommand, RunWeights, SamplingSession, Sample))],
    ),
    SchemaChange(
        "0035_stages_of_sessions",
        [
            AddColumn(RunSession, "stage", str, "open"),
            AddIndex(RunSession, "by_stage", ["stage", "seen_at", "seq"]),
        ],
    ),
)
"""Every change since the stores share them, oldest first."""
