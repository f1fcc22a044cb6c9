"""Uploads of datasets in several calls: announce it, send the file to its own address, then keep it as a version."""

from datetime import datetime

import attrs

from modelyard.domain.record import KEPT, Index, Record


@attrs.frozen
class Upload:
    """One upload of a dataset.

    It is announced, then its file is expected (`md5`), then received (`artifact`), then kept as a version of a dataset
    (`dataset_id`), which owns the artifact from then on. `md5` is the digest of the file that the client announced, in
    base64. `file_secret` and `manifest_secret` are digests of the secrets in the addresses issued last; a client must
    know such a secret to send that part. `rows` is 0 if the file cannot be read as examples.
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
        """Whether its file was received."""
        return self.digest is not None


RECORDS = (
    Record(
        Upload,
        "uploads",
        ("id",),
        unique={"file": ("file_secret",), "manifest": ("manifest_secret",)},
        indexes={"by_entity": Index(("entity",), ("created_at",)), "by_age": Index((), ("created_at",))},
        artifacts=lambda upload: {} if upload.artifact is None else {upload.artifact: upload.digest},
        texts=KEPT,
    ),
)
