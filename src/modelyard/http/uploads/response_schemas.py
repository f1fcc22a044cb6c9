"""What the W&B client receives while it uploads an artifact: the data of GraphQL answers."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from modelyard.domain.training import Dataset
from modelyard.domain.upload import Upload

Data = Mapping[str, Any]


@attrs.frozen
class GraphQLAnswer:
    """The answer to an operation."""

    data: Mapping[str, Any]


@attrs.frozen
class Received:
    """The answer to what needs none: nothing."""


@attrs.frozen
class StreamAnswer:
    """The answer to a piece of a run's stream: go on."""

    exitcode: int | None
    limits: Mapping[str, Any]


STREAMED: Data = {"exitcode": None, "limits": {}}


# ---- who, and where --------------------------------------------------------------------------------------------------


def viewer(entity: str) -> Data:
    """Who calls: the entity stands for the user."""
    user: Data = {
        "id": entity,
        "name": entity,
        "username": entity,
        "entity": entity,
        "email": None,
        "admin": False,
        "flags": "{}",
        "deletedAt": None,
        "apiKeys": None,
        "teams": {"edges": [{"node": {"name": entity}}]},
    }
    return {"viewer": user}


NO_FEATURES: Data = {"serverInfo": {"features": []}}

NO_FIELDS: Data = {
    alias: {"fields": [], "inputFields": []} for alias in ("TypeInfo", "QueryType", "MutationType", "ServerInfoType")
}
"""No type tells of its fields, so the client leaves out what it is not sure of."""

NO_ORGANIZATION: Data = {"entity": {"organization": {"coreWeaveOrganizationId": None}}}


def no_run(entity: str, project: str) -> Data:
    """A project without the run: runs are not kept."""
    return {"model": {**_project(entity, project), "id": project, "bucket": None}}


def run(entity: str, project: str, name: str, display_name: str) -> Data:
    """A run, as if it had been made."""
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
    """Files about a run are not wanted: none gets an address."""
    files = [{"name": name, "uploadUrl": None} for name in names]
    return {"createRunFiles": {"runID": run, "uploadHeaders": [], "files": files}}


# ---- an artifact on its way ------------------------------------------------------------------------------------------


def begun(upload: Upload) -> Data:
    """An artifact that waits for its file."""
    artifact = {"id": upload.id, "state": "PENDING", "artifactSequence": {"latestArtifact": None}}
    return {"createArtifact": {"artifact": artifact}}


def manifest_expected(upload_id: str, url: str | None) -> Data:
    """Where the list of files is to be put; None where nobody asked."""
    file: Data = {"id": upload_id, "uploadUrl": url, "uploadHeaders": []}
    return {"createArtifactManifest": {"artifactManifest": {"id": upload_id, "file": file}}}


def file_expected(upload_id: str, name: str, url: str | None) -> Data:
    """Where the file is to be put; None when it is here already."""
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
    """An artifact that is whole."""
    return {"commitArtifact": {"artifact": {"id": upload_id, "digest": None}}}


# ---- an artifact that is there ---------------------------------------------------------------------------------------


def artifact(id: str, dataset: Dataset | None) -> Data:
    """An artifact by its id, or null."""
    return {"artifact": None if dataset is None else _artifact(id, dataset)}


def named_artifact(dataset: Dataset | None) -> Data:
    """An artifact by its name, or null."""
    return {"project": {"artifact": None if dataset is None else _artifact(dataset.id, dataset)}}


def _artifact(id: str, dataset: Dataset) -> Data:
    collection = {
        "__typename": "ArtifactSequence",
        "name": dataset.name,
        "project": {"name": dataset.project, "entity": {"name": dataset.entity}},
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
        "commitHash": None,
        "fileCount": 1,
        "createdAt": dataset.created_at.isoformat(),
        "updatedAt": None,
        "aliases": [],
    }
