"""The changes that add the tables of training runs."""

from datetime import datetime

from modelyard.stores.table_changes import AddColumn, AddIndex, AddTable, SchemaChange

_SESSIONS, _RUNS, _COMMANDS = "run_sessions", "training_runs", "run_commands"
_WEIGHTS, _SAMPLERS, _SAMPLES = "run_weights", "samplers", "samples"


def _strings(columns: str) -> dict[str, type]:
    return dict.fromkeys(columns.split(), str)


TRAINING_RUNS = SchemaChange(
    "0034_training_runs",
    "jobs",
    [
        AddTable(
            _SESSIONS,
            {
                **_strings("id entity project tags metadata display_name sdk_version finished"),
                "created_at": datetime,
                "seen_at": datetime,
            },
            ["id"],
            sequence="seq",
        ),
        AddTable(
            _RUNS,
            {
                **_strings("id session_id entity project model_id base_model adapter job_id metadata ended"),
                "created_at": datetime,
                "applied": int,
                "steps": int,
            },
            ["id"],
            sequence="seq",
        ),
        AddTable(
            _COMMANDS,
            {
                **_strings("run_id entity kind digest arguments body status result answer error"),
                "number": int,
                "created_at": datetime,
                "ended_at": datetime,
            },
            ["run_id", "number"],
            nullable=frozenset({"ended_at"}),
        ),
        AddTable(
            _WEIGHTS,
            {
                **_strings("id run_id kind entity project checkpoint_id state metadata"),
                "step": int,
                "size": int,
                "created_at": datetime,
                "expires_at": datetime,
            },
            ["id"],
            sequence="seq",
        ),
        AddTable(
            _SAMPLERS,
            {
                **_strings("id session_id entity project base_model model path"),
                "created_at": datetime,
                "clones": int,
            },
            ["id"],
            sequence="seq",
        ),
        AddTable(
            _SAMPLES,
            {**_strings("id entity digest process status answer error"), "created_at": datetime},
            ["id"],
            sequence="seq",
        ),
        *(
            AddIndex(table, f"{table}_by_{name}", columns.split())
            for table, name, columns in (
                (_SESSIONS, "entity", "entity seq"),
                (_RUNS, "entity", "entity seq"),
                (_RUNS, "session", "session_id seq"),
                (_COMMANDS, "entity", "entity run_id number"),
                (_WEIGHTS, "entity", "entity seq"),
                (_WEIGHTS, "run", "run_id seq"),
                (_WEIGHTS, "expiry", "entity expires_at seq"),
                (_SAMPLERS, "entity", "entity seq"),
                (_SAMPLERS, "session", "session_id seq"),
                (_SAMPLES, "entity", "entity seq"),
            )
        ),
    ],
)
"""Sessions, runs, their commands and weights; samplers, and requests to sample."""

STAGES = SchemaChange(
    "0035_stages_of_sessions",
    _SESSIONS,
    [
        AddColumn(_SESSIONS, "stage", str, "open"),
        AddIndex(_SESSIONS, f"{_SESSIONS}_by_stage", ["stage", "seen_at", "seq"]),
    ],
)
"""Sessions that end because their client is silent."""
