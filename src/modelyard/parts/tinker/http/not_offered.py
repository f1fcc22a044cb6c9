"""Paths that Tinker's client requests and that do not exist here."""

from collections.abc import Mapping, Sequence

NOT_OFFERED: Mapping[str, str] = {
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
"""What to use instead of routes of Tinker that do not exist here, by a segment after `api/v1`."""


def why_missing(segments: Sequence[str | None]) -> str | None:
    """Return the sentence for a path below `api/v1`; None for one that no client requests."""
    if segments[:2] != ["api", "v1"]:
        return None
    return next((NOT_OFFERED[one] for one in segments[2:] if one is not None and one in NOT_OFFERED), None)
