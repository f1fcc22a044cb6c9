"""What the W&B client sends to upload an artifact: GraphQL operations with their variables, and a list of files.

No GraphQL is interpreted: an operation is known by its name or by its first field, and read by its variables. Fields
keep the client's own names.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal

import attrs

from modelyard.errors import InvalidInput
from modelyard.formats.constraints import Length, Matching, Refused

_name = Matching(r"(?!\.+$)[A-Za-z0-9._-]{1,128}", "must be 1 to 128 characters of A-Z a-z 0-9 . _ - and not dots only")
_id = Matching(r"[0-9a-f-]{36}", "must be an id, as the creation answered it")
_text = Length(1, 512)
_HEAD = re.compile(
    r"\s*+(?:(?:query|mutation)\b\s*+(?P<name>\w{1,128}+)?\s*+(?:\([^)]*+\))?+\s*+)?+\{\s*+(?:\w++\s*+:\s*+)?+(?P<field>\w{1,128}+)"
)


@attrs.frozen
class GraphQLRequest:
    """An operation of the W&B client. Only those that an upload needs are known."""

    query: str = attrs.field(validator=Length(1, 65_536))
    variables: Mapping[str, Any] | None = None
    operationName: str | None = attrs.field(default=None, validator=Length(1, 128))


def names_of(request: GraphQLRequest) -> tuple[str, str]:
    """The operation's name and its first field; "" for what cannot be seen."""
    head = _HEAD.match(request.query)
    if head is None:
        return request.operationName or "", ""
    return request.operationName or head["name"] or "", head["field"]


# ---- the variables of each operation -------------------------------------------------------------------------------


@attrs.frozen
class RunVariables:
    """A run by its name. Without `entity` it is the key's default one."""

    name: str = attrs.field(validator=_text)
    project: str = attrs.field(default="uncategorized", validator=_name)
    entity: str | None = attrs.field(default=None, validator=_name)
    displayName: str | None = attrs.field(default=None, validator=_text)


@attrs.frozen
class NamedArtifactVariables:
    """An artifact by `<name>:v<N>` or `<name>:latest`."""

    name: str = attrs.field(validator=_text)
    project: str = attrs.field(validator=_name)
    entity: str | None = attrs.field(default=None, validator=_name)


@attrs.frozen
class ArtifactVariables:
    """An artifact by the id that its creation answered."""

    id: str = attrs.field(validator=_text)


@attrs.frozen
class ArtifactCreate:
    """A new version of an artifact. What else is told of it (aliases, metadata, tags) is not kept."""

    artifactTypeName: Literal["dataset"]
    artifactCollectionName: str = attrs.field(validator=_name)
    projectName: str = attrs.field(validator=_name)
    entityName: str | None = attrs.field(default=None, validator=_name)
    distributedID: object = attrs.field(default=None, validator=Refused("cannot be made by several writers here"))


@attrs.frozen
class ArtifactCreateVariables:
    """The variables of `CreateArtifact`."""

    input: ArtifactCreate


@attrs.frozen
class ManifestVariables:
    """The variables of `CreateArtifactManifest`. Without `includeUpload` no address is asked for."""

    artifactID: str = attrs.field(validator=_id)
    manifestType: Literal["FULL"] = "FULL"
    includeUpload: bool = True


@attrs.frozen
class FileSpec:
    """A file that is about to be sent; `md5` is its MD5 in base64."""

    artifactID: str = attrs.field(validator=_id)
    name: str = attrs.field(validator=_text)
    md5: str = attrs.field(validator=Matching(r"[A-Za-z0-9+/]{22}==", "must be an MD5 in base64"))
    uploadPartsInput: object = attrs.field(default=None, validator=Refused("a file in several parts is not taken"))


@attrs.frozen
class FilesVariables:
    """The variables of `CreateArtifactFiles`: the one file of an artifact."""

    artifactFiles: tuple[FileSpec, ...]

    def __attrs_post_init__(self) -> None:
        if len(self.artifactFiles) != 1:
            raise InvalidInput.at("artifactFiles", msg="must be one file: an artifact here holds one of JSON Lines")


@attrs.frozen
class CommitVariables:
    """The variables of `CommitArtifact`."""

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
        """The digests of all files."""
        return [entry.digest for entry in self.contents.values()]


@attrs.frozen
class RunStream:
    """A piece of what a run tells of itself: its metrics and its output."""

    files: Mapping[str, Any] | None = None
