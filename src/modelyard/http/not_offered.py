"""Paths that clients request and that do not exist here: for each a sentence on why, and what to use instead."""

from collections.abc import Mapping, Sequence

UNKNOWN = "no route has this path; /openapi.json lists the routes"

_TAGS = "tags and aliases of published objects are not set over this interface; versions are named by digest or number"
_QUEUES = "there are no annotation queues here: give feedback on calls, and query them by it"
_USAGE = "sums over traced calls are not made here; what models used is in the ledger (usage, /metrics)"
_PROJECT = "projects have no settings here"
_AGENTS = "there are no queries for agents here: their spans are calls, which /calls/stream_query finds"

NOT_OFFERED: Mapping[tuple[str, ...], str] = {
    ("cost",): "costs are not kept by clients: prices are in the catalogue, and what each answer cost is in the ledger",
    ("annotation_queues",): _QUEUES,
    ("tags",): _TAGS,
    ("aliases",): _TAGS,
    ("objs",): _TAGS,
    ("agents",): _AGENTS,
    ("threads",): "there is no list of threads: /calls/stream_query finds the calls of one by `filter.thread_ids`",
    ("calls", "usage"): _USAGE,
    ("calls", "stats"): _USAGE,
    ("trace", "usage"): _USAGE,
    ("calls", "score"): "calls are not scored by the server: score them in your program, or in an evaluation",
    ("feedback", "stats"): "feedback is not summed up here; /feedback/query finds it",
    ("feedback", "aggregate"): "feedback is not summed up here; /feedback/query finds it",
    ("feedback", "payload_schema"): "feedback is not summed up here; /feedback/query finds it",
    ("completions",): "models are asked at /inference/v1/chat/completions",
    ("dataset_sources",): "sources of datasets are not linked here; a collected dataset names them in its rows",
    ("image",): "images are not kept apart; send them as files",
    ("project",): _PROJECT,
    ("service",): _PROJECT,
}
"""Paths of the trace client besides those for calls, objects, evaluations and feedback."""


OF_TINKER: Mapping[str, str] = {
    "copy_weights": "weights are not copied: load them into a run, or read their checkpoint's files",
    "create_custom_loss": "losses are not uploaded: forward_backward_custom has the client compute its own",
    "retrieve_futures": "answers are retrieved one at a time, with retrieve_future",
    "publish": "weights are not published: give others a key that may see their project",
    "archive": "a checkpoint's files are downloaded one at a time from its model",
    "external_weights_urls": "a checkpoint's files are downloaded one at a time from its model",
    "trace_export": "sessions have no traces",
    "project": "a session stays in the project in which it began",
    "search": "sessions are listed, and not searched",
    "auth": "API keys are not exchanged for other credentials",
    "billing": "usage is reported by the command `modelyard usage` and by the ledger",
}
"""Replacements of routes of Tinker that do not exist here, by a segment after `api/v1`."""


def why_missing(segments: Sequence[str | None]) -> str:
    if segments[:2] == ["api", "v1"]:
        found = [OF_TINKER[one] for one in segments[2:] if one is not None and one in OF_TINKER]
        return found[0] if found else UNKNOWN
    first = tuple(segments[:2])
    return NOT_OFFERED.get(first) or NOT_OFFERED.get(first[:1], UNKNOWN)  # type: ignore[arg-type]
