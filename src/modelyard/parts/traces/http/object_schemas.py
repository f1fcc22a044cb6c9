"""The bodies of trace clients' requests and answers about objects, tables and files."""

from typing import Any

import attrs

from modelyard.formats.constraints import Length, Matching
from modelyard.parts.traces.http.schemas import COUNT, PROJECT, SortBy

NAME = Matching(r"(?!\.+$)[\w.-]{1,128}", "must be 1 to 128 word characters, '.' and '-'")
DIGEST = Length(1, 128)
_BYTES = {"schema": {"format": "binary"}}


# ---- objects -------------------------------------------------------------------------------------------------------


@attrs.frozen
class NewObject:
    """A value to publish. With `expected_digest` it is refused if it has another digest here."""

    project_id: str = attrs.field(validator=PROJECT)
    object_id: str = attrs.field(validator=NAME)
    val: Any
    expected_digest: str | None = attrs.field(default=None, validator=DIGEST)


@attrs.frozen
class ObjectCreateRequest:
    """A value to publish under a name."""

    obj: NewObject


@attrs.frozen
class ObjectCreated:
    """The version that has the value."""

    digest: str
    object_id: str


@attrs.frozen
class ObjectReadRequest:
    """One version, by its digest, `v<n>`, `latest` or an alias."""

    project_id: str = attrs.field(validator=PROJECT)
    object_id: str = attrs.field(validator=NAME)
    digest: str = attrs.field(validator=DIGEST)
    metadata_only: bool | None = None


@attrs.frozen
class PublishedObject:
    """A version of an object."""

    project_id: str
    object_id: str
    created_at: str
    deleted_at: str | None
    digest: str
    version_index: int
    is_latest: int
    kind: str
    base_object_class: str | None
    leaf_object_class: str | None
    val: Any


@attrs.frozen
class ObjectAnswer:
    """A version of an object."""

    obj: PublishedObject


@attrs.frozen
class ObjectsFilter:
    """A filter of objects: they must agree with every member."""

    object_ids: tuple[str, ...] | None = attrs.field(default=None, validator=Length(0, 1000))
    base_object_classes: tuple[str, ...] | None = None
    exclude_base_object_classes: tuple[str, ...] | None = None
    leaf_object_classes: tuple[str, ...] | None = None
    is_op: bool | None = None
    latest_only: bool | None = None


@attrs.frozen
class ObjectsQueryRequest:
    """A selection of objects, sorted by `object_id` or `created_at`, and the part of them to return."""

    project_id: str = attrs.field(validator=PROJECT)
    filter: ObjectsFilter | None = None
    limit: int | None = attrs.field(default=None, validator=COUNT)
    offset: int | None = attrs.field(default=None, validator=COUNT)
    sort_by: tuple[SortBy, ...] | None = attrs.field(default=None, validator=Length(0, 2))
    metadata_only: bool | None = None


@attrs.frozen
class ObjectsAnswer:
    """The versions that a query finds."""

    objs: tuple[PublishedObject, ...]


@attrs.frozen
class ObjectDeleteRequest:
    """The versions to delete; all when `digests` is absent."""

    project_id: str = attrs.field(validator=PROJECT)
    object_id: str = attrs.field(validator=NAME)
    digests: tuple[str, ...] | None = attrs.field(default=None, validator=Length(1, 1000))


@attrs.frozen
class ObjectsDeleted:
    """How many versions were deleted."""

    num_deleted: int


@attrs.frozen
class RefsReadRequest:
    """The references that are to be followed."""

    refs: tuple[str, ...] = attrs.field(validator=Length(0, 1000))


@attrs.frozen
class RefsAnswer:
    """The values that references lead to; null if a reference leads to nothing that the caller may see."""

    vals: tuple[Any, ...]


# ---- tables and files ----------------------------------------------------------------------------------------------


@attrs.frozen
class NewTable:
    """Rows to store, in their order."""

    project_id: str = attrs.field(validator=PROJECT)
    rows: tuple[Any, ...]
    expected_digest: str | None = attrs.field(default=None, validator=DIGEST)


@attrs.frozen
class TableCreateRequest:
    """A table that is to be stored."""

    table: NewTable


@attrs.frozen
class TableOfDigestsRequest:
    """A table of rows that are stored already."""

    project_id: str = attrs.field(validator=PROJECT)
    row_digests: tuple[str, ...]
    expected_digest: str | None = attrs.field(default=None, validator=DIGEST)


@attrs.frozen
class TableCreated:
    """The table that has the rows."""

    digest: str
    row_digests: tuple[str, ...]


@attrs.frozen
class TableOfDigests:
    """The table that has the rows of these digests."""

    digest: str


@attrs.frozen
class RowAppended:
    """A row that is appended, or inserted before the one at `index`."""

    row: Any
    index: int | None = attrs.field(default=None, validator=COUNT)


@attrs.frozen
class RowRemoved:
    """The position of a row that is left out."""

    index: int = attrs.field(validator=COUNT)


@attrs.frozen
class TableChange:
    """One change: exactly one of its members."""

    append: RowAppended | None = None
    insert: RowAppended | None = None
    pop: RowRemoved | None = None


@attrs.frozen
class TableUpdateRequest:
    """Changes that make another table of one."""

    project_id: str = attrs.field(validator=PROJECT)
    base_digest: str = attrs.field(validator=DIGEST)
    updates: tuple[TableChange, ...] = attrs.field(validator=Length(0, 100_000))


@attrs.frozen
class TableUpdated:
    """The other table, and the digests of the rows that changed."""

    digest: str
    updated_row_digests: tuple[str, ...]


@attrs.frozen
class RowsFilter:
    """A filter of rows by their digests."""

    row_digests: tuple[str, ...] | None = attrs.field(default=None, validator=Length(0, 10_000))


@attrs.frozen
class TableQueryRequest:
    """A selection of a table's rows, in their order."""

    project_id: str = attrs.field(validator=PROJECT)
    digest: str = attrs.field(validator=DIGEST)
    filter: RowsFilter | None = None
    limit: int | None = attrs.field(default=None, validator=COUNT)
    offset: int | None = attrs.field(default=None, validator=COUNT)
    sort_by: tuple[SortBy, ...] | None = attrs.field(default=None, validator=Length(0, 10))


@attrs.frozen
class TableRowObject:
    """A row with its digest and its position."""

    digest: str
    val: Any
    original_index: int


@attrs.frozen
class TableRows:
    """The rows of a table, in their order."""

    rows: tuple[TableRowObject, ...]


@attrs.frozen
class TableCountRequest:
    """The table to count the rows of."""

    project_id: str = attrs.field(validator=PROJECT)
    digest: str = attrs.field(validator=DIGEST)


@attrs.frozen
class TableCount:
    """How many rows a table has."""

    count: int


@attrs.frozen
class FileCreateForm:
    """A form with a file; `project_id` is before it or after."""

    project_id: str = attrs.field(validator=PROJECT)
    file: str = attrs.field(metadata=_BYTES)
    expected_digest: str | None = attrs.field(default=None, validator=DIGEST)


@attrs.frozen
class FileCreated:
    """The digest by which the file is read."""

    digest: str


@attrs.frozen
class FileContentRequest:
    """A file by its digest."""

    project_id: str = attrs.field(validator=PROJECT)
    digest: str = attrs.field(validator=DIGEST)
