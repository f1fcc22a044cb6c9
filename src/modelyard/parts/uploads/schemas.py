"""The messages of the W&B client while it uploads an artifact: GraphQL operations, and a list of files.

Fields keep the client's own names.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs

from modelyard.domain.training import Dataset
from modelyard.errors import InvalidInput
from modelyard.formats.constraints import NAME, Length, Matching, Unsupported
from modelyard.parts.uploads.records import Upload

Data = Mapping[str, Any]

_id = Matching(r"[0-9a-f-]{36}", "must be an id, as the creation returned it")
_text = Length(1, 512)
# ---- the variables of each operation -------------------------------------------------------------------------------


@attrs.frozen
class RunVariables:
    """A run by its name. Without `entity`, the key's default entity is meant."""

    name: str = attrs.field(validator=_text)
    project: str = attrs.field(default="uncategorized", validator=NAME)
    entity: str | None = attrs.field(default=None, validator=NAME)
    displayName: str | None = attrs.field(default=None, validator=_text)


@attrs.frozen
class NamedArtifactVariables:
    """An artifact by `<name>:v<N>` or `<name>:latest`."""

    name: str = attrs.field(validator=_text)
    project: str = attrs.field(validator=NAME)
    entity: str | None = attrs.field(default=None, validator=NAME)


@attrs.frozen
class ArtifactVariables:
    """An artifact by the id that its creation answered."""

    id: str = attrs.field(validator=_text)


@attrs.frozen
class ArtifactCreate:
    """A new version of an artifact. Its aliases, metadata and tags are not kept."""

    artifactTypeName: Literal["dataset"]
    artifactCollectionName: str = attrs.field(validator=NAME)
    projectName: str = attrs.field(validator=NAME)
    entityName: str | None = attrs.field(default=None, validator=NAME)
    distributedID: object = attrs.field(default=None, validator=Unsupported("cannot be made by several writers here"))


@attrs.frozen
class ArtifactCreateVariables:
    """The variables of the operation `CreateArtifact`."""

    input: ArtifactCreate


@attrs.frozen
class ManifestVariables:
    """The variables of `CreateArtifactManifest`. Without `includeUpload` no address is requested."""

    artifactID: str = attrs.field(validator=_id)
    manifestType: Literal["FULL"] = "FULL"
    includeUpload: bool = True


@attrs.frozen
class FileSpec:
    """A file that is about to be sent; `md5` is its MD5 in base64."""

    artifactID: str = attrs.field(validator=_id)
    name: str = attrs.field(validator=_text)
    md5: str = attrs.field(validator=Matching(r"[A-Za-z0-9+/]{22}==", "must be an MD5 in base64"))
    uploadPartsInput: object = attrs.field(
        default=None, validator=Unsupported("cannot be a file in several parts here")
    )


@attrs.frozen
class FilesInput:
    """The one file of an artifact. How it is laid out in a bucket is not asked here."""

    artifactFiles: tuple[FileSpec, ...]

    def __attrs_post_init__(self) -> None:
        if len(self.artifactFiles) != 1:
            raise InvalidInput.at("artifactFiles", msg="must be one file: an artifact has one file of JSON Lines here")


@attrs.frozen
class FilesVariables:
    """The variables of `CreateArtifactFiles`: since wandb 0.29 they lie in an `input`."""

    artifactFiles: tuple[FileSpec, ...] | None = None
    input: FilesInput | None = None

    @property
    def file(self) -> FileSpec:
        given = self.input or FilesInput(self.artifactFiles or ())
        return given.artifactFiles[0]

    def __attrs_post_init__(self) -> None:
        if (self.artifactFiles is None) == (self.input is None):
            raise InvalidInput.at("artifactFiles", msg="is required, or input, and not both", type="missing")
        if self.input is None:
            FilesInput(self.artifactFiles or ())


@attrs.frozen
class CommitVariables:
    """The variables of the operation `CommitArtifact`."""

    artifactID: str = attrs.field(validator=_id)


@attrs.frozen
class RunFilesVariables:
    """The variables of `CreateRunFiles`: files about the run itself."""

    run: str = attrs.field(validator=_text)
    files: tuple[str, ...] = attrs.field(validator=Length(0, 1000))


# ---- what is put ---------------------------------------------------------------------------------------------------


@attrs.frozen
class ManifestEntry:
    """A file of an artifact, by its MD5 in base64."""

    digest: str | None = None


@attrs.frozen
class Manifest:
    """The list of an artifact's files, by their names."""

    contents: Mapping[str, ManifestEntry]

    @property
    def digests(self) -> list[str | None]:
        return [entry.digest for entry in self.contents.values()]


@attrs.frozen
class RunStream:
    """A piece of the metrics and the output of a run."""

    files: Mapping[str, Any] | None = None


# ---- the answers -------------------------------------------------------------------------------------------------


@attrs.frozen
class Received:
    """The empty answer to an upload."""


@attrs.frozen
class StreamAnswer:
    """The answer to a piece of the stream of a run, which makes the client continue."""

    exitcode: int | None
    limits: Mapping[str, Any]


# ---- who, and where --------------------------------------------------------------------------------------------------


NO_FIELDS: Data = {
    alias: {"fields": [], "inputFields": []} for alias in ("TypeInfo", "QueryType", "MutationType", "ServerInfoType")
}
"""The fields of the types, which are not given, so that the client leaves out optional ones."""

NO_ORGANIZATION: Data = {"entity": {"organization": {"coreWeaveOrganizationId": None}}}


def no_run(entity: str, project: str) -> Data:
    """Describe a project without the run, because runs are not kept."""
    return {"model": {**_project(entity, project), "id": project, "bucket": None}}


def run(entity: str, project: str, name: str, display_name: str) -> Data:
    bucket = {
        "id": name,
        "name": name,
        "displayName": display_name,
        "description": None,
        "config": "{}",
        "sweepName": None,
        "project": {**_project(entity, project), "id": project},
        "historyLineCount": 0,
    }
    return {"upsertBucket": {"bucket": bucket, "inserted": True}}


def _project(entity: str, project: str) -> Data:
    return {"name": project, "entity": {"id": entity, "name": entity}}


def run_files(run: str, names: Sequence[str]) -> Data:
    """Give no file of a run an address, because they are not kept."""
    files = [{"name": name, "uploadUrl": None} for name in names]
    return {"createRunFiles": {"runID": run, "uploadHeaders": [], "files": files}}


# ---- an artifact on its way ------------------------------------------------------------------------------------------


def begun(upload: Upload) -> Data:
    artifact = {"id": upload.id, "state": "PENDING", "artifactSequence": {"latestArtifact": None}}
    return {"createArtifact": {"artifact": artifact}}


def manifest_expected(upload_id: str, url: str | None) -> Data:
    """Return where to put the list of files; None if that was not requested."""
    file: Data = {"id": upload_id, "uploadUrl": url, "uploadHeaders": []}
    return {"createArtifactManifest": {"artifactManifest": {"id": upload_id, "file": file}}}


def file_expected(upload_id: str, name: str, url: str | None) -> Data:
    node: Data = {
        "id": upload_id,
        "name": name,
        "storagePath": None,
        "uploadUrl": url,
        "uploadHeaders": [],
        "uploadMultipartUrls": None,
        "artifact": {"id": upload_id},
    }
    return {"createArtifactFiles": {"files": {"edges": [{"node": node}]}}}


def committed(upload_id: str) -> Data:
    return {"commitArtifact": {"artifact": {"id": upload_id, "digest": None}}}


# ---- an artifact that is there ---------------------------------------------------------------------------------------


def artifact(id: str, dataset: Dataset | None) -> Data:
    return {"artifact": None if dataset is None else _artifact(id, dataset)}


def named_artifact(dataset: Dataset | None) -> Data:
    return {"project": {"artifact": None if dataset is None else _artifact(dataset.id, dataset)}}


def membership(dataset: Dataset | None) -> Data:
    """Describe an artifact as the member of its collection, as clients since wandb 0.29 ask for it."""
    if dataset is None:
        return {"project": {"artifactCollectionMembership": None}}
    found = _artifact(dataset.id, dataset)
    member = {
        "__typename": "ArtifactCollectionMembership",
        "id": dataset.id,
        "versionIndex": dataset.version,
        "createdAt": found["createdAt"],
        "aliases": [],
        "artifactCollection": found["artifactSequence"],
        "artifact": found,
    }
    return {"project": {"artifactCollectionMembership": member}}


def _artifact(id: str, dataset: Dataset) -> Data:
    collection = {
        "__typename": "ArtifactSequence",
        "name": dataset.name,
        "project": {
            "id": dataset.project,
            "internalId": dataset.project,
            "name": dataset.project,
            "entity": {"name": dataset.entity},
        },
    }
    return {
        "__typename": "Artifact",
        "id": id,
        "artifactSequence": collection,
        "versionIndex": dataset.version,
        "artifactType": {"name": "dataset"},
        "description": None,
        "metadata": None,
        "ttlDurationSeconds": -1,
        "ttlIsInherited": True,
        "tags": [],
        "historyStep": None,
        "state": "COMMITTED",
        "size": dataset.size,
        "digest": dataset.digest,
        "digestAlgorithm": "MANIFEST_MD5",
        "commitHash": None,
        "fileCount": 1,
        "createdAt": dataset.created_at.isoformat(),
        "updatedAt": None,
        "aliases": [],
    }
