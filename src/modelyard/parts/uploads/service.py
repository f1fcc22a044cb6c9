"""Datasets that are uploaded in several calls: begun, sent to an address that contains a secret, and committed.

Everything between the calls is in the store, so any process over the same store can continue an upload.
"""

import base64
import hashlib
from datetime import datetime, timedelta
from functools import partial
from typing import BinaryIO

import attrs

from modelyard.domain.identity import Principal, Scope, check_name
from modelyard.domain.training import Dataset, DatasetName
from modelyard.errors import Conflict, Forbidden, InvalidInput, NotFound
from modelyard.formats.json_stream import file_chunks
from modelyard.formats.training_data import EXAMPLES, read_examples
from modelyard.parts.uploads.records import Upload
from modelyard.platform.artifacts import remove_unless_recorded
from modelyard.platform.keys.service import secret_digest
from modelyard.platform.owned import store_texts
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.platform.training.data import add_version, store_rows, version_of
from modelyard.protocols import Snapshot, StoredArtifact, Tx

LIFE = timedelta(hours=1)
"""How long an upload may take from its announcement to its commit; its addresses live no longer."""

SECRET_BYTES = 32
REMOVED_AT_ONCE = 20


class Uploads:
    """The uploads that a principal may see. Those of others look as if they did not exist."""

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    # ---- the calls of an upload, in their order

    def begin(self, name: str, *, project: str, entity: str | None = None) -> Upload:
        """Announce the next version of a dataset. Some expired uploads are removed.

        Raises `InvalidInput`, `Forbidden`.
        """
        entity = self._principal.entity if entity is None else entity
        for field, value in {"entity": entity, "project": project, "name": name}.items():
            check_name(value, field)
        self._principal.require(entity, project)
        now = self._runtime.clock.now()
        upload = Upload(self._runtime.ids(), entity, project, name, now, now + LIFE)
        removed = store_texts(self._runtime, entity, partial(_begin, upload=upload))
        for old in removed:
            if old.artifact is not None:
                self._runtime.artifacts.remove(old.artifact)
        return upload

    def expect_file(self, upload_id: str, md5: str) -> str | None:
        """Return the secret of an address for the file with this MD5, in base64; None when that file has come already.

        An earlier address becomes invalid. Raises `NotFound`, and `Conflict` when another file has come.
        """
        secret = self._new_secret()
        step = partial(self._expect_file, upload_id, md5, secret_digest(secret), self._runtime.clock.now())
        return secret if self._runtime.store.transact(step) else None

    def expect_manifest(self, upload_id: str) -> str:
        """Return the secret of an address for the list of files. Raises `NotFound`."""
        secret = self._new_secret()
        now = self._runtime.clock.now()

        def step(tx: Tx) -> None:
            tx.replace(attrs.evolve(self._open(tx, upload_id, now), manifest_secret=secret_digest(secret)))

        self._runtime.store.transact(step)
        return secret

    def receive(self, secret: str, file: BinaryIO) -> None:
        """Store the file that came to an address, as rows if it can be read as examples. Idempotent.

        Any other file is stored as it is, and the job that uses it reports why. The file must be seekable, and stays
        the caller's to close. Raises `InvalidInput`, `Forbidden`.
        """
        upload = self._upload_at("file", secret)
        if _md5(file) != upload.md5:
            raise InvalidInput.at("body", msg="is not the file that was announced: its MD5 differs; send it again")
        if upload.received:
            return
        stored, rows = self._keep(file)
        with remove_unless_recorded(self._runtime.artifacts, stored.name):
            named = self._runtime.store.transact(
                partial(self._receive, secret, stored, rows, self._runtime.clock.now())
            )
        if not named:
            self._runtime.artifacts.remove(stored.name)

    def check_manifest(self, secret: str, digests: list[str | None]) -> None:
        """Compare the list of files that came to an address, by their MD5, with the file that came.

        Raises `InvalidInput`, `Forbidden`.
        """
        upload = self._upload_at("manifest", secret)
        if not upload.received or digests != [upload.md5]:
            raise InvalidInput.at("body", "contents", msg="must name the one file that was uploaded, and nothing else")

    def commit(self, upload_id: str) -> Dataset:
        """Make the file a version of the dataset; if a version has the same rows, that version is returned. Idempotent.

        Raises `NotFound`, and `Conflict` when no file came.
        """
        new_id, now = self._runtime.ids(), self._runtime.clock.now()
        dataset, spare = self._runtime.store.transact(lambda tx: self._commit(tx, upload_id, new_id, now))
        if spare is not None:
            self._runtime.artifacts.remove(spare)
        return dataset

    # ---- reading

    def authenticate(self, part: str, secret: str) -> Principal:
        """Return the principal of an address for a part, "file" or "manifest", who may use its project only.

        Raises `Forbidden`.
        """
        upload = self._upload_at(part, secret)
        return Principal(f"upload {upload.id}", upload.entity, Scope(upload.entity, frozenset([upload.project])))

    def dataset(self, id: str) -> Dataset | None:
        """Return the dataset of an upload, by the id of either, or None."""
        return self._runtime.store.read(lambda snapshot: self._dataset(snapshot, id))

    def find(self, name: str, *, project: str, entity: str | None = None) -> Dataset | None:
        """Return a dataset by `<name>:v<N>` or `<name>:latest`, or None. Raises `Forbidden`."""
        entity = self._principal.entity if entity is None else entity
        self._principal.require(entity, project)
        named = DatasetName.parse(f"modelyard:///{entity}/{project}/{name}")
        return None if named is None else self._runtime.store.read(lambda snapshot: version_of(snapshot, named))

    # ---- steps

    def _open(self, tx: Snapshot, upload_id: str, now: datetime) -> Upload:
        upload = get_or_none(tx, Upload, upload_id)
        if (
            upload is None
            or not self._principal.scope.covers(upload.entity, upload.project)
            or upload.expires_at <= now
        ):
            raise NotFound("Upload", upload_id, "begin it again")
        return upload

    def _expect_file(self, upload_id: str, md5: str, secret: str, now: datetime, tx: Tx) -> bool:
        upload = self._open(tx, upload_id, now)
        if upload.received:
            if upload.md5 != md5:
                raise Conflict("another file was uploaded already, and an upload has one file; begin another upload")
            return False
        tx.replace(attrs.evolve(upload, md5=md5, file_secret=secret))
        return True

    def _receive(self, secret: str, stored: StoredArtifact, rows: int, now: datetime, tx: Tx) -> bool:
        upload = _addressed(tx, "file", secret, now)
        if upload.received:
            return False
        tx.replace(attrs.evolve(upload, artifact=stored.name, rows=rows, size=stored.size, digest=stored.digest))
        return True

    def _commit(self, tx: Tx, upload_id: str, new_id: str, now: datetime) -> tuple[Dataset, str | None]:
        upload = self._open(tx, upload_id, now)
        if upload.dataset_id is not None:
            return tx.get(Dataset, upload.dataset_id), None
        if upload.artifact is None or upload.digest is None:
            raise Conflict("no file was uploaded; an artifact has one file of JSON Lines here")
        place = (upload.entity, upload.project, upload.name)
        asked = Dataset(new_id, *place, 0, upload.artifact, upload.rows, upload.size, upload.digest, now)
        dataset = add_version(tx, asked)
        tx.replace(attrs.evolve(upload, artifact=None, dataset_id=dataset.id))
        return dataset, None if dataset.id == new_id else upload.artifact

    def _dataset(self, snapshot: Snapshot, id: str) -> Dataset | None:
        upload = get_or_none(snapshot, Upload, id)
        dataset = get_or_none(snapshot, Dataset, id if upload is None else upload.dataset_id or "")
        if dataset is None or not self._principal.scope.covers(dataset.entity, dataset.project):
            return None
        return dataset

    # ---- parts of the above

    def _new_secret(self) -> str:
        return self._runtime.randomness(SECRET_BYTES).hex()

    def _upload_at(self, part: str, secret: str) -> Upload:
        now = self._runtime.clock.now()
        return self._runtime.store.read(lambda snapshot: _addressed(snapshot, part, secret, now))

    def _keep(self, file: BinaryIO) -> tuple[StoredArtifact, int]:
        artifacts = self._runtime.artifacts
        try:
            return store_rows(artifacts, EXAMPLES, read_examples(file))
        except InvalidInput:
            file.seek(0)
            return artifacts.put(file_chunks(file)), 0


def _begin(tx: Tx, upload: Upload) -> list[Upload]:
    """Add an upload and return the old uploads that it has removed."""
    old = tx.page(Upload, "by_age", limit=REMOVED_AT_ONCE)
    gone = [other for other in old if other.expires_at <= upload.created_at]
    for other in gone:
        tx.remove(Upload, other.id)
    tx.add(upload)
    return gone


def _addressed(snapshot: Snapshot, part: str, secret: str, now: datetime) -> Upload:
    """Find the upload of an address. The error is the same whether it never was, was replaced or has expired."""
    upload = snapshot.find(Upload, part, secret_digest(secret))
    if upload is None or upload.expires_at <= now:
        raise Forbidden("this upload address is not valid, or no longer valid; request a new one")
    return upload


def _md5(file: BinaryIO) -> str:
    """Return the MD5 of a file in base64, by which clients announce it, and rewind the file."""
    summed = hashlib.md5(usedforsecurity=False)
    for chunk in file_chunks(file):
        summed.update(chunk)
    file.seek(0)
    return base64.b64encode(summed.digest()).decode()
