"""Files that clients keep for later: training data, requests of a batch, and what a batch has answered."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import attrs

from modelyard.domain.record import FOR_EVER, Index, Record, digests_of, frozen_mapping

UPLOADED_FOR = ("fine-tune", "batch", "evals", "user_data", "assistants", "vision")
"""What a client may upload a file for."""

RESULTS_PURPOSE = "fine-tune-results"
"""The purpose of the files that fine-tuning jobs write."""

BATCH_OUTPUT = "batch_output"
"""The purpose of the files that a batch writes."""


@attrs.frozen
class StoredFile:
    """A file of `size` bytes, made for a `purpose`. Its bytes never change.

    They are the bytes of its `parts`, one after the other in the order of their names: each part is an artifact,
    `{"artifact", "size", "digest"}`. From `expires_at` on it is not there any more.
    """

    id: str
    entity: str
    project: str
    filename: str
    purpose: str
    size: int
    created_at: datetime
    expires_at: datetime = FOR_EVER
    parts: Mapping[str, Any] = attrs.field(converter=frozen_mapping, factory=dict)


RECORDS = (
    Record(
        StoredFile,
        "files",
        ("id",),
        indexes={
            "all": Index((), ("created_at",)),
            "by_entity": Index(("entity",), ("created_at",)),
            "by_project": Index(("entity", "project"), ("created_at",)),
            "by_expiry": Index((), ("expires_at",)),
        },
        artifacts=lambda file: digests_of(file.parts.values()),
        texts="created_at",
    ),
)
