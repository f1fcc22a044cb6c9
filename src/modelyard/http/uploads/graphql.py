"""The GraphQL operations that the W&B client uploads an artifact with; there are no others."""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from modelyard.formats.converter import structure
from modelyard.http.errors import MalformedRequest
from modelyard.http.route import RouteCall
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
"""Where the parts of an upload are put. The one parameter is a secret, named after the part that it gives access to."""

_AUTHORITY = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")


# ---- who, and where ------------------------------------------------------------------------------------------------


def _viewer(call: RouteCall, _: Mapping[str, Any]) -> Data:
    return answer.viewer(call.principal.entity)


def _no_run(call: RouteCall, run: RunVariables) -> Data:
    return answer.no_run(_entity(call, run), run.project)


def _run(call: RouteCall, run: RunVariables) -> Data:
    return answer.run(_entity(call, run), run.project, run.name, run.displayName or run.name)


def _entity(call: RouteCall, run: RunVariables) -> str:
    """Return the entity of a run. Raises `Forbidden` unless the caller may use it and the project."""
    entity = call.principal.entity if run.entity is None else run.entity
    call.principal.require(entity, run.project)
    return entity


def _run_files(_: RouteCall, variables: RunFilesVariables) -> Data:
    return answer.run_files(variables.run, variables.files)


# ---- an artifact on its way ----------------------------------------------------------------------------------------


def _begin(call: RouteCall, variables: ArtifactCreateVariables) -> Data:
    wanted = variables.input
    return answer.begun(
        call.platform.uploads.begin(wanted.artifactCollectionName, project=wanted.projectName, entity=wanted.entityName)
    )


def _expect_manifest(call: RouteCall, variables: ManifestVariables) -> Data:
    if not variables.includeUpload:
        return answer.manifest_expected(variables.artifactID, None)
    secret = call.platform.uploads.expect_manifest(variables.artifactID)
    return answer.manifest_expected(variables.artifactID, _base(call) + MANIFEST.format(manifest=secret))


def _expect_file(call: RouteCall, variables: FilesVariables) -> Data:
    (file,) = variables.artifactFiles
    secret = call.platform.uploads.expect_file(file.artifactID, file.md5)
    url = None if secret is None else _base(call) + FILE.format(file=secret)
    return answer.file_expected(file.artifactID, file.name, url)


def _commit(call: RouteCall, variables: CommitVariables) -> Data:
    call.platform.uploads.commit(variables.artifactID)
    return answer.committed(variables.artifactID)


def _base(call: RouteCall) -> str:
    """Return the URL at which this caller reaches the platform. Raises `MalformedRequest`."""
    host = call.headers.get("host", "")
    if not _AUTHORITY.fullmatch(host):
        raise MalformedRequest("this needs a header Host with the address of the server")
    return f"{call.request.scheme}://{host}{quote(call.request.root.rstrip('/'))}"


# ---- an artifact that is there -------------------------------------------------------------------------------------


def _artifact(call: RouteCall, variables: ArtifactVariables) -> Data:
    return answer.artifact(variables.id, call.platform.uploads.dataset(variables.id))


def _named_artifact(call: RouteCall, variables: NamedArtifactVariables) -> Data:
    return answer.named_artifact(
        call.platform.uploads.find(variables.name, project=variables.project, entity=variables.entity)
    )


# ---- by their names, or by their one field -------------------------------------------------------------------------

Operation = Callable[[RouteCall, Mapping[str, Any]], Data]


def _with(cls: type[V], perform: Callable[[RouteCall, V], Data]) -> Operation:
    """Make an operation whose variables are read as `cls`. Raises `InvalidInput`."""
    return lambda call, variables: perform(call, structure(cls, variables, "variables"))


def _always(data: Data) -> Operation:
    """Make an operation with the same answer for every caller."""
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
    """Find the operation of a request. Raises `MalformedRequest` for an unknown one."""
    name, field = names_of(request)
    found = _OPERATIONS.get(name) or _OPERATIONS.get(field)
    if found is None:
        raise MalformedRequest(
            f"there is no operation {name or field!r}; only those that upload an artifact are supported"
        )
    return found
