"""Changes of the tables of `tinker` between versions, oldest first."""

from modelyard.parts.tinker.records import RunCommand, RunSession, RunWeights, Sample, SamplingSession, TrainingRun
from modelyard.stores.table_changes import AddColumn, AddIndex, AddTable, SchemaChange

CHANGES: tuple[SchemaChange, ...] = (
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
    SchemaChange("tinker/0001_runs_in_order", [AddIndex(TrainingRun, "by_all", ["seq"])]),
)
