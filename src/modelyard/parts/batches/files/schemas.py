"""Files as the clients of the chat format know them: the form that uploads one, and what is shown of it."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal

import attrs

from modelyard.domain.record import FOR_EVER
from modelyard.formats.constraints import Within
from modelyard.http.listing import PageObject, page_class
from modelyard.http.message import answering, constant
from modelyard.parts.batches.files.records import StoredFile

_BYTES: Mapping[str, Any] = {"schema": {"format": "binary"}}


@attrs.frozen
class FileLife:
    """When a file expires: so many seconds after it was made, from an hour to 30 days."""

    seconds: int = attrs.field(validator=Within(3600, 30 * 24 * 3600))
    anchor: Literal["created_at"] = "created_at"

    def delta(self) -> timedelta:
        return timedelta(seconds=self.seconds)


@attrs.frozen
class FileUpload:
    """The form that uploads a file; the members of `expires_after` are fields such as `expires_after[seconds]`."""

    file: str = attrs.field(metadata=_BYTES)
    purpose: Literal["fine-tune", "batch", "evals", "user_data", "assistants", "vision"]
    expires_after: FileLife | None = None


@attrs.frozen
class FileObject:
    """A file. `expires_at` is null if the file stays until it is deleted; times are in Unix seconds."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"]


@attrs.frozen
class FileDeleted:
    """A file that was deleted."""

    id: str
    object: Literal["file"]
    deleted: bool


def _expiry(file: StoredFile) -> int | None:
    return None if file.expires_at == FOR_EVER else int(file.expires_at.timestamp())


file_object = answering(
    FileObject,
    object=constant("file"),
    bytes="size",
    created_at=lambda file: int(file.created_at.timestamp()),
    expires_at=_expiry,
    status=constant("processed"),
)
file_deleted = answering(FileDeleted, object=constant("file"), deleted=constant(True))

FilePage: type[PageObject] = page_class("FilePage", FileObject, file_object, "Some files, the newest first.")
