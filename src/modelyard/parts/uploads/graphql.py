"""The GraphQL operations that the W&B client uploads an artifact with; there are no others."""

import re
from collections.abc import Mapping
from urllib.parse import quote

from modelyard.domain.training import Dataset
from modelyard.http.errors import MalformedRequest
from modelyard.http.route import RouteCall
from modelyard.parts.uploads import schemas as answer
from modelyard.parts.uploads.graphql_request import ACCOUNT, Data, Operation, always, with_variables
from modelyard.parts.uploads.schemas import (
    ArtifactCreateVariables,
    ArtifactVariables,
    CommitVariables,
    FilesVariables,
    ManifestVariables,
    NamedArtifactVariables,
    RunFilesVariables,
    RunVariables,
)

FILE, MANIFEST = "/uploads/files/{file}", "/uploads/manifests/{manifest}"
"""Where the parts of an upload are put. The one parameter is a secret, named after the part that it gives access to."""

_AUTHORITY = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")


# ---- runs ------------------------------------------------------------------------------------------------


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
        call.platform.compat.uploads.begin(
            wanted.artifactCollectionName, project=wanted.projectName, entity=wanted.entityName
        )
    )


def _expect_manifest(call: RouteCall, variables: ManifestVariables) -> Data:
    if not variables.includeUpload:
        return answer.manifest_expected(variables.artifactID, None)
    secret = call.platform.compat.uploads.expect_manifest(variables.artifactID)
    return answer.manifest_expected(variables.artifactID, _base(call) + MANIFEST.format(manifest=secret))


def _expect_file(call: RouteCall, variables: FilesVariables) -> Data:
    file = variables.file
    secret = call.platform.compat.uploads.expect_file(file.artifactID, file.md5)
    url = None if secret is None else _base(call) + FILE.format(file=secret)
    return answer.file_expected(file.artifactID, file.name, url)


def _commit(call: RouteCall, variables: CommitVariables) -> Data:
    call.platform.compat.uploads.commit(variables.artifactID)
    return answer.committed(variables.artifactID)


def _base(call: RouteCall) -> str:
    """Return the URL at which this caller reaches the platform. Raises `MalformedRequest`."""
    host = call.headers.text(b"host") or ""
    if not _AUTHORITY.fullmatch(host):
        raise MalformedRequest("this needs a header Host with the address of the server")
    return f"{call.request.scheme}://{host}{quote(call.request.root.rstrip('/'))}"


# ---- an artifact that is there -------------------------------------------------------------------------------------


def _artifact(call: RouteCall, variables: ArtifactVariables) -> Data:
    return answer.artifact(variables.id, call.platform.compat.uploads.dataset(variables.id))


def _named_artifact(call: RouteCall, variables: NamedArtifactVariables) -> Data:
    return answer.named_artifact(_found(call, variables))


def _membership(call: RouteCall, variables: NamedArtifactVariables) -> Data:
    return answer.membership(_found(call, variables))


def _found(call: RouteCall, variables: NamedArtifactVariables) -> Dataset | None:
    return call.platform.compat.uploads.find(variables.name, project=variables.project, entity=variables.entity)


# ---- by their names, or by their one field -------------------------------------------------------------------------

OPERATIONS: Mapping[str, Operation] = {
    **ACCOUNT,
    "__type": always(answer.NO_FIELDS),
    "OrganizationCoreWeaveOrganizationID": always(answer.NO_ORGANIZATION),
    "RunResumeStatus": with_variables(RunVariables, _no_run),
    "UpsertBucket": with_variables(RunVariables, _run),
    "CreateRunFiles": with_variables(RunFilesVariables, _run_files),
    "CreateArtifact": with_variables(ArtifactCreateVariables, _begin),
    "CreateArtifactManifest": with_variables(ManifestVariables, _expect_manifest),
    "CreateArtifactFiles": with_variables(FilesVariables, _expect_file),
    "CommitArtifact": with_variables(CommitVariables, _commit),
    "ArtifactByID": with_variables(ArtifactVariables, _artifact),
    "ArtifactByName": with_variables(NamedArtifactVariables, _named_artifact),
    "ArtifactMembershipByName": with_variables(NamedArtifactVariables, _membership),
    "ArtifactType": with_variables(NamedArtifactVariables, _named_artifact),
}
"""Every operation, by its name or by its one field."""
