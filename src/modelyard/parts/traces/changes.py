"""The change that adds the tables of traced calls."""

from datetime import datetime

from modelyard.stores.table_changes import AddColumn, AddIndex, AddTable, Fill, SchemaChange

_CALLS, _IN_PROJECT, _BY_DIGEST = "traced_calls", ("entity", "project", "id"), ("entity", "project", "digest")
_NAMED = dict.fromkeys((*_BY_DIGEST, "name"), str)
_MAY_BE_NONE = {"parent_id", "display_name", "exception", "ended_at", "thread_id", "turn_id", "completion_id"}

TRACES = SchemaChange(
    "0030_traces",
    "jobs",
    [
        AddTable(
            _CALLS,
            {
                **dict.fromkeys(("entity", "project", "id", "trace_id", "op_name"), str),
                "started_at": datetime,
                **dict.fromkeys(("parent_id", "op", "display_name", "inputs", "attributes", "output"), str),
                **dict.fromkeys(("summary", "exception"), str),
                "ended_at": datetime,
                **dict.fromkeys(("thread_id", "turn_id", "completion_id", "more"), str),
            },
            _IN_PROJECT,
            frozenset(_MAY_BE_NONE),
            "seq",
        ),
        *(
            AddIndex(_CALLS, f"{_CALLS}_by_{name}", [*columns.split(), "seq"], nullable=frozenset(_MAY_BE_NONE))
            for name, columns in (
                ("entity", "entity"),
                ("project", "entity project"),
                ("start", "entity project started_at"),
                ("trace", "entity project trace_id started_at"),
                ("parent", "entity project parent_id started_at"),
                ("op", "entity project op started_at"),
                ("completion", "entity project completion_id"),
                ("age", "started_at"),
            )
        ),
        AddTable(
            "feedback",
            {
                **dict.fromkeys((*_IN_PROJECT, "ref", "type"), str),
                "created_at": datetime,
                **dict.fromkeys(("payload", "creator", "links"), str),
            },
            _IN_PROJECT,
            frozenset({"creator"}),
            "seq",
        ),
        *(
            AddIndex("feedback", f"feedback_by_{columns.split()[-1]}", [*columns.split(), "seq"])
            for columns in ("entity", "entity project", "entity project ref")
        ),
        AddTable("traced_rows", dict.fromkeys((*_BY_DIGEST, "content"), str), _BY_DIGEST),
        AddTable(
            "traced_tables",
            {**dict.fromkeys(_BY_DIGEST, str), "rows": int, "artifact": str, "created_at": datetime},
            _BY_DIGEST,
        ),
        AddTable("traced_files", {**_NAMED, "size": int, "artifact": str, "created_at": datetime}, _BY_DIGEST),
    ],
)

OUTCOMES = SchemaChange(
    "0032_outcomes_of_calls",
    "traced_calls",
    [
        AddColumn(_CALLS, "outcome", str, ""),
        Fill(
            _CALLS,
            "outcome",
            "CASE WHEN ended_at IS NULL THEN 'running' WHEN exception IS NULL THEN 'success' ELSE 'error' END",
        ),
        AddIndex(_CALLS, f"{_CALLS}_by_outcome", ["entity", "project", "outcome", "started_at", "seq"]),
    ],
)
