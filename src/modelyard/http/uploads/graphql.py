"""The operations of an artifact's upload: the closed set that the W&B client's upload consists of."""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from modelyard.formats.converter import structure
from modelyard.http.errors import MalformedRequest
from modelyard.http.route import Call
from modelyard.http.uploads import schemas as answer
from modelyard.http.uploads.schemas import (
    ArtifactCreateVariables,
    ArtifactVariables,
    CommitVariables,
    Data,
    FilesVariables,
    GraphQLRequest,
    ManifestVariables,
    NamedArtifactVariables,
    RunFilesVariables,
    RunVariables,
    names_of,
)

V = TypeVar("V")

FILE, MANIFEST = "/uploads/files/{file}", "/uploads/manifests/{manifest}"
"""Where the parts of an upload are put. The one parameter is the secret, named for the part that it opens."""

_AUTHORITY = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")


# ---- who, and where ------------------------------------------------------------------------------------------------


def _viewer(call: Call, _: Mapping[str, Any]) -> Data:
    return answer.viewer(call.principal.entity)


def _no_run(call: Call, run: RunVariables) -> Data:
    return answer.no_run(_entity(call, run), run.project)


def _run(call: Call, run: RunVariables) -> Data:
    return answer.run(_entity(call, run), run.project, run.name, run.displayName or run.name)


def _entity(call: Call, run: RunVariables) -> str:
    """The entity that is meant. Raises `Forbidden` unless the caller may use it and the project."""
    entity = call.principal.entity if run.entity is None else run.entity
    call.principal.require(entity, run.project)
    return entity


def _run_files(_: Call, asked: RunFilesVariables) -> Data:
    return answer.run_files(asked.run, asked.files)


# ---- an artifact on its way ----------------------------------------------------------------------------------------


def _begin(call: Call, asked: ArtifactCreateVariables) -> Data:
    wanted = asked.input
    return answer.begun(
        call.platform.uploads.begin(wanted.projectName, wanted.artifactCollectionName, entity=wanted.entityName)
    )


def _expect_manifest(call: Call, asked: ManifestVariables) -> Data:
    if not asked.includeUpload:
        return answer.manifest_expected(asked.artifactID, None)
    secret = call.platform.uploads.expect_manifest(asked.artifactID)
    return answer.manifest_expected(asked.artifactID, _base(call) + MANIFEST.format(manifest=secret))


def _expect_file(call: Call, asked: FilesVariables) -> Data:
    (file,) = asked.artifactFiles
    secret = call.platform.uploads.expect_file(file.artifactID, file.md5)
    url = None if secret is None else _base(call) + FILE.format(file=secret)
    return answer.file_expected(file.artifactID, file.name, url)


def _commit(call: Call, asked: CommitVariables) -> Data:
    call.platform.uploads.commit(asked.artifactID)
    return answer.committed(asked.artifactID)


def _base(call: Call) -> str:
    """Where this very caller reaches the platform: the client takes whole URLs only. Raises `MalformedRequest`."""
    host = call.headers.get("host", "")
    if not _AUTHORITY.fullmatch(host):
        raise MalformedRequest("this needs a header Host that says where the server is reached")
    return f"{call.request.scheme}://{host}{quote(call.request.root.rstrip('/'))}"


# ---- an artifact that is there -------------------------------------------------------------------------------------


def _artifact(call: Call, asked: ArtifactVariables) -> Data:
    return answer.artifact(asked.id, call.platform.uploads.dataset(asked.id))


def _named_artifact(call: Call, asked: NamedArtifactVariables) -> Data:
    return answer.named_artifact(call.platform.uploads.find(asked.project, asked.name, entity=asked.entity))


# ---- by their names, or by the one field that they ask for -----------------------------------------------------------

Operation = Callable[[Call, Mapping[str, Any]], Data]


def _with(cls: type[V], perform: Callable[[Call, V], Data]) -> Operation:
    """An operation whose variables are read as `cls`. Raises `InvalidInput`."""
    return lambda call, variables: perform(call, structure(cls, variables, "variables"))


def _always(data: Data) -> Operation:
    """An operation that is answered alike to everyone."""
    return lambda call, variables: data


_OPERATIONS: Mapping[str, Operation] = {
    "viewer": _viewer,
    "serverInfo": _always(answer.NO_FEATURES),
    "__type": _always(answer.NO_FIELDS),
    "OrganizationCoreWeaveOrganizationID": _always(answer.NO_ORGANIZATION),
    "RunResumeStatus": _with(RunVariables, _no_run),
    "UpsertBucket": _with(RunVariables, _run),
    "CreateRunFiles": _with(RunFilesVariables, _run_files),
    "CreateArtifact": _with(ArtifactCreateVariables, _begin),
    "CreateArtifactManifest": _with(ManifestVariables, _expect_manifest),
    "CreateArtifactFiles": _with(FilesVariables, _expect_file),
    "CommitArtifact": _with(CommitVariables, _commit),
    "ArtifactByID": _with(ArtifactVariables, _artifact),
    "ArtifactByName": _with(NamedArtifactVariables, _named_artifact),
    "ArtifactType": _with(NamedArtifactVariables, _named_artifact),
}


def operation(request: GraphQLRequest) -> Operation:
    """The operation that is asked for. Raises `MalformedRequest` when there is no such one here."""
    name, field = names_of(request)
    found = _OPERATIONS.get(name) or _OPERATIONS.get(field)
    if found is None:
        raise MalformedRequest(
            f"there is no operation {name or field!r} here, only what the upload of an artifact needs"
        )
    return found
