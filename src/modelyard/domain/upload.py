"""A dataset on its way here in several calls: announced, sent to an address of its own, and then kept as a version."""

from datetime import datetime

import attrs

from modelyard.domain.record import Index, Record


@attrs.frozen
class Upload:
    """One dataset on its way. It is announced, then its file is awaited (`md5`), then here (`artifact`), then kept as a
    version of a dataset (`dataset_id`), which from then on owns the artifact.

    `md5` is what the client says of its file, in base64. `file_secret` and `manifest_secret` are the digests of what
    the addresses given out last hold; only whoever knows such a secret may send that one part. `rows` is 0 when the
    file cannot be read as examples.
    """

    id: str
    entity: str
    project: str
    name: str
    created_at: datetime
    expires_at: datetime
    md5: str | None = None
    file_secret: str | None = attrs.field(default=None, repr=False)
    manifest_secret: str | None = attrs.field(default=None, repr=False)
    artifact: str | None = None
    rows: int = 0
    size: int = 0
    digest: str | None = None
    dataset_id: str | None = None

    @property
    def received(self) -> bool:
        """Whether its file is here."""
        return self.digest is not None


RECORDS = (
    Record(
        Upload,
        "uploads",
        ("id",),
        unique={"file": ("file_secret",), "manifest": ("manifest_secret",)},
        indexes={"by_entity": Index(("entity",), ("created_at",)), "by_age": Index((), ("created_at",))},
    ),
)
