"""Uploads that do not pass this process, and uploads that were never finished.

S3 takes an artifact in parts. obstore signs whole objects only, so botocore signs the addresses of parts, lists and
completes them. Google Cloud Storage and Azure get one address for the whole, in a folder `uploading` from which
`finish` gives the object its name. Other stores have no addresses.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

from modelyard.artifacts.naming import missing
from modelyard.errors import ArtifactMissing, Conflict, MissingExtra
from modelyard.lazy import log
from modelyard.parts.objects.faults import Border, to_store_error
from modelyard.protocols import DirectUpload

try:
    import obstore
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.session import Session
    from obstore.store import AzureStore, GCSStore, S3Store
except ImportError as error:
    raise MissingExtra(str(error.name).partition(".")[0], "objects") from error

LIFE = 24 * 3600
"""Seconds for which an address is valid, if the credentials that signed it are valid for so long."""

_PART = 128 * 2**20
_MOST_PARTS = 10_000
_MOST_BYTES = 5 * 10**9
"""How much one PUT may carry."""

_UPLOADING = "uploading"


_BYTES = {"Content-Type": "application/octet-stream"}
"""What each PUT must carry: a form, which some clients send by default, is not taken for bytes."""


def part_size(size: int) -> int:
    """Return how many bytes each part of an artifact has: whole MiB, and few enough parts."""
    return max(_PART, (-(-size // _MOST_PARTS) // 2**20 + 1) * 2**20)


class DirectUploads(Protocol):
    """The uploads of one object store."""

    def begin(self, name: str, size: int) -> DirectUpload | None:
        """Begin an upload, or return None if there are no addresses for so many bytes."""

    def finish(self, upload: DirectUpload) -> None:
        """Give the object its name. Raises `Conflict`, `ArtifactMissing`."""

    def remove_unfinished(self, seconds: float, name: str = "") -> int:
        """Remove the uploads that began so many seconds ago, of one name or of all. Returns their number."""


def direct_uploads(store: Any, place: str) -> DirectUploads:
    if isinstance(store, S3Store):
        return _InParts(store, place)
    return _Whole(store, place, isinstance(store, GCSStore | AzureStore))


class _InParts:
    """Uploads in parts to S3."""

    def __init__(self, store: Any, place: str) -> None:
        self._store, self._place, self._bucket = store, place, store.config["bucket"]
        self._made: Any = None

    def begin(self, name: str, size: int) -> DirectUpload:
        part, key = part_size(size), self._key(name)
        with self._crossed(name):
            begun = self._client.create_multipart_upload(Bucket=self._bucket, Key=key)
            named = {"Bucket": self._bucket, "Key": key, "UploadId": begun["UploadId"]}
            addresses = tuple(
                self._client.generate_presigned_url("upload_part", {**named, "PartNumber": number + 1}, LIFE)
                for number in range(-(-size // part))
            )
        return DirectUpload(name, begun["UploadId"], size, part, addresses, _BYTES)

    def finish(self, upload: DirectUpload) -> None:
        named = {"Bucket": self._bucket, "Key": self._key(upload.name), "UploadId": upload.id}
        try:
            with self._crossed(upload.name):
                parts = list(self._client.get_paginator("list_parts").paginate(**named).search("Parts[]"))
                check_size(upload, sum(part["Size"] for part in parts if part))
                listed = [{"ETag": part["ETag"], "PartNumber": part["PartNumber"]} for part in parts]
                self._client.complete_multipart_upload(**named, MultipartUpload={"Parts": listed})
        except ArtifactMissing:
            found = Border(self._place).ask(upload.name, obstore.head, self._store, upload.name)
            check_size(upload, found["size"])  # it was finished before

    def remove_unfinished(self, seconds: float, name: str = "") -> int:
        removed = 0
        with self._crossed(name):
            for key, upload in self._unfinished(seconds, self._key(name)):
                with suppress(self._client.exceptions.NoSuchUpload):
                    self._client.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=upload)
                    removed += 1
        return removed

    def _unfinished(self, seconds: float, prefix: str) -> Iterator[tuple[str, str]]:
        pages = self._client.get_paginator("list_multipart_uploads")
        try:
            for page in pages.paginate(Bucket=self._bucket, Prefix=prefix):
                now = parsedate_to_datetime(page["ResponseMetadata"]["HTTPHeaders"]["date"])
                since = now - timedelta(seconds=seconds - 1)  # the date has whole seconds
                found = (one for one in page.get("Uploads", ()) if one["Initiated"] <= since)
                yield from ((one["Key"], one["UploadId"]) for one in found)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] != 501:
                raise
            log.warning("%s cannot list unfinished uploads; have its lifecycle rules remove them", self._place)

    def _key(self, name: str) -> str:
        return f"{self._store.prefix}/{name}" if self._store.prefix else name

    @property
    def _client(self) -> Any:
        if self._made is None:
            self._made = _s3_client(self._store)
        return self._made

    @contextmanager
    def _crossed(self, name: str) -> Iterator[None]:
        try:
            yield
        except (ClientError, BotoCoreError) as fault:
            if (getattr(fault, "response", None) or {}).get("Error", {}).get("Code") in ("NoSuchUpload", "NoSuchKey"):
                raise missing(name) from None
            raise to_store_error(fault, self._place) from None


def _s3_client(store: Any) -> Any:
    """Make a client with the options of the store; botocore looks for the rest where obstore does."""
    given = store.config
    provider = store.credential_provider
    keys = provider() if provider is not None else given
    virtual = str(given.get("virtual_hosted_style_request", "")).lower() == "true"
    session = Session()
    return session.create_client(
        "s3",
        region_name=given.get("region") or session.get_config_variable("region") or "us-east-1",
        endpoint_url=given.get("endpoint"),
        aws_access_key_id=keys.get("access_key_id"),
        aws_secret_access_key=keys.get("secret_access_key"),
        aws_session_token=keys.get("token") or keys.get("session_token"),
        config=Config(
            signature_version="s3v4",
            s3={"addressing_style": "virtual" if virtual else "path"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            retries={"mode": "standard", "total_max_attempts": 3},
        ),
    )


class _Whole:
    """Uploads of whole objects, each with one address if the store `signs`."""

    def __init__(self, store: Any, place: str, signs: bool) -> None:
        self._store, self._border, self._signs = store, Border(place), signs

    def begin(self, name: str, size: int) -> DirectUpload | None:
        if not self._signs or size > _MOST_BYTES:
            return None
        key = f"{_UPLOADING}/{name}"
        address = self._border.ask(name, obstore.sign, self._store, "PUT", key, timedelta(seconds=LIFE))
        headers = {**_BYTES, "x-ms-blob-type": "BlockBlob"} if isinstance(self._store, AzureStore) else _BYTES
        return DirectUpload(name, key, size, size, (address,), headers)

    def finish(self, upload: DirectUpload) -> None:
        if not self._signs:
            raise missing(upload.name)
        key = f"{_UPLOADING}/{upload.name}"
        try:
            check_size(upload, self._border.ask(upload.name, obstore.head, self._store, key)["size"])
            self._border.ask(upload.name, obstore.rename, self._store, key, upload.name)
        except ArtifactMissing:
            self._check_finished(upload)

    def _check_finished(self, upload: DirectUpload) -> None:
        try:
            found = self._border.ask(upload.name, obstore.head, self._store, upload.name)
        except ArtifactMissing:
            check_size(upload, 0)
        else:
            check_size(upload, found["size"])

    def remove_unfinished(self, seconds: float, name: str = "") -> int:
        if not self._signs:
            return 0
        since, removed = datetime.now(UTC) - timedelta(seconds=seconds), 0
        pages = iter(self._border.ask(name, obstore.list, self._store, _UPLOADING, chunk_size=1000))
        while page := self._border.ask(name, next, pages, None):
            for one in page:
                if one["path"].endswith(name) and one["last_modified"] <= since:
                    self._border.ask(name, obstore.delete, self._store, one["path"])
                    removed += 1
        return removed


def check_size(upload: DirectUpload, size: int) -> None:
    if size != upload.size:
        raise Conflict(
            f"{size} of the {upload.size} bytes of this upload have come; put each part of {upload.part_size} bytes at "
            "its address, the last one shorter, then finish it"
        )
