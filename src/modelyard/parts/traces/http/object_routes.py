"""The routes of published objects, of tables and of files."""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, BinaryIO, TypeVar

from modelyard.domain.evaluation.objects import ObjectVersion
from modelyard.errors import BodyTooLarge, InvalidInput, NotFound
from modelyard.formats.converter import structure, structure_exactly
from modelyard.http.interface import Auth
from modelyard.http.message import Response, boundary_of, json_response, problems_at
from modelyard.http.response_bodies import download
from modelyard.http.route import Body, Route, RouteCall, documented_route
from modelyard.parts.batches.files.multipart import read_form
from modelyard.parts.traces.call_query import sort_key
from modelyard.parts.traces.http.documents import DocumentField, time_text
from modelyard.parts.traces.http.object_schemas import (
    FileContentRequest,
    FileCreated,
    FileCreateForm,
    ObjectAnswer,
    ObjectCreated,
    ObjectCreateRequest,
    ObjectDeleteRequest,
    ObjectReadRequest,
    ObjectsAnswer,
    ObjectsDeleted,
    ObjectsFilter,
    ObjectsQueryRequest,
    PublishedObject,
    RefsAnswer,
    RefsReadRequest,
    RowsFilter,
    TableChange,
    TableCount,
    TableCountRequest,
    TableCreated,
    TableCreateRequest,
    TableOfDigests,
    TableOfDigestsRequest,
    TableQueryRequest,
    TableRowObject,
    TableRows,
    TableUpdated,
    TableUpdateRequest,
)
from modelyard.parts.traces.http.requests import MAX_BODY, body_of, control_body, control_route, data_route, place_of
from modelyard.parts.traces.interface import TRACES
from modelyard.parts.traces.objects import PublishedObjects, classes_of, is_op, value_of
from modelyard.parts.traces.tables import TableRow

T = TypeVar("T")

# ---- objects -------------------------------------------------------------------------------------------------------


def create_object(call: RouteCall) -> Response:
    """Store the next version of an object; an equal value is the version that has it."""
    body = body_of(ObjectCreateRequest, call).obj
    with problems_at("body", "obj", value="obj"):
        made = call.platform.compat.traces.objects.publish(
            body.object_id, body.val, expected=body.expected_digest, **place_of(call, body.project_id)
        )
    return json_response(ObjectCreated(made.digest, made.object_id))


def _shown(objects: PublishedObjects, version: ObjectVersion, metadata_only: bool | None) -> PublishedObject:
    base, own = classes_of(version)
    return PublishedObject(
        f"{version.entity}/{version.project}",
        version.object_id,
        time_text(version.created_at) or "",
        None,
        version.digest,
        version.index,
        int(objects.is_latest(version)),
        "op" if is_op(version) else "object",
        base,
        own,
        {} if metadata_only else value_of(version),
    )


def read_object(call: RouteCall) -> Response:
    """Show a version of an object, by digest, `v<n>`, `latest` or alias."""
    body = control_body(ObjectReadRequest, call)
    objects = call.platform.compat.traces.objects
    found = objects.get(body.object_id, body.digest, **place_of(call, body.project_id))
    return json_response(ObjectAnswer(_shown(objects, found, body.metadata_only)))


def query_objects(call: RouteCall) -> Response:
    """Find versions of objects, in the order in which they were published unless sorted."""
    body = control_body(ObjectsQueryRequest, call, filter=ObjectsFilter)
    wanted, objects = body.filter or ObjectsFilter(), call.platform.compat.traces.objects
    listed = objects.list(wanted.object_ids or (), **place_of(call, body.project_id))
    found: Iterable[ObjectVersion] = (one for one in listed if _fits(objects, one, wanted))
    for sort in reversed(body.sort_by or ()):
        if sort.field not in ("object_id", "created_at"):
            raise InvalidInput.at("body", "sort_by", msg="must be by object_id or created_at")
        key = (lambda one: one.object_id) if sort.field == "object_id" else (lambda one: one.seq)
        found = sorted(found, key=key, reverse=sort.direction == "desc")
    part = _window(iter(found), body.limit, body.offset)
    return json_response(ObjectsAnswer(tuple(_shown(objects, one, body.metadata_only) for one in part)))


def _fits(objects: PublishedObjects, version: ObjectVersion, wanted: ObjectsFilter) -> bool:
    base, own = classes_of(version)
    return (
        (wanted.is_op is None or is_op(version) is wanted.is_op)
        and (not wanted.base_object_classes or base in wanted.base_object_classes)
        and (not wanted.exclude_base_object_classes or base not in wanted.exclude_base_object_classes)
        and (not wanted.leaf_object_classes or own in wanted.leaf_object_classes)
        and (not wanted.latest_only or objects.is_latest(version))
    )


def _window(items: Iterator[T], limit: int | None, offset: int | None) -> Iterator[T]:
    begin = offset or 0
    return islice(items, begin, None if limit is None else begin + limit)


def delete_object(call: RouteCall) -> Response:
    """Delete versions of an object, or all of them."""
    body = structure_exactly(ObjectDeleteRequest, call.body, "body")
    objects, place = call.platform.compat.traces.objects, place_of(call, body.project_id)
    deleted = objects.delete(body.object_id, body.digests or (), **place)
    if not deleted:
        raise NotFound("object", body.object_id)
    return json_response(ObjectsDeleted(deleted))


def read_references(call: RouteCall) -> Response:
    """Follow references to objects, calls and rows of tables."""
    body = control_body(RefsReadRequest, call)
    return json_response(RefsAnswer(tuple(_followed(call, ref) for ref in body.refs)))


def _followed(call: RouteCall, ref: str) -> Any:
    try:
        return call.platform.compat.traces.objects.read(ref)
    except NotFound:
        return None


# ---- tables --------------------------------------------------------------------------------------------------------


def create_table(call: RouteCall) -> Response:
    """Store a table; equal rows in equal order are the same table."""
    body = body_of(TableCreateRequest, call).table
    tables, place = call.platform.compat.traces.tables, place_of(call, body.project_id)
    with problems_at("body", "table"):
        made = tables.create(body.rows, expected=body.expected_digest, **place)
    return json_response(TableCreated(made.digest, tuple(tables.digests(made.digest, **place))))


def create_table_of_digests(call: RouteCall) -> Response:
    """Store a table of rows that are stored already, by their digests."""
    body = body_of(TableOfDigestsRequest, call)
    place = place_of(call, body.project_id)
    with problems_at("body"):
        made = call.platform.compat.traces.tables.of_digests(body.row_digests, expected=body.expected_digest, **place)
    return json_response(TableOfDigests(made.digest))


def update_table(call: RouteCall) -> Response:
    """Store the table that another one becomes by appending, inserting and leaving out rows."""
    body = body_of(TableUpdateRequest, call)
    tables, place = call.platform.compat.traces.tables, place_of(call, body.project_id)
    digests, changed = list(tables.digests(body.base_digest, **place)), list[str]()
    new = tables.create((row for one in body.updates for row in _new_rows(one)), **place)
    rows = tables.digests(new.digest, **place)
    for at, one in enumerate(body.updates):
        changed.append(_change(digests, one, rows, at))
    made = tables.of_digests(digests, **place)
    return json_response(TableUpdated(made.digest, tuple(changed)))


def _new_rows(change: TableChange) -> Iterator[Any]:
    for one in (change.append, change.insert):
        if one is not None:
            yield one.row


def _change(digests: list[str], change: TableChange, rows: Iterator[str], at: int) -> str:
    """Make one change; returns the digest of its row. Raises `InvalidInput`."""
    given = [one for one in (change.append, change.insert, change.pop) if one is not None]
    place = change.pop or change.insert
    if len(given) != 1 or (change.insert is not None and change.insert.index is None):
        raise InvalidInput.at("body", "updates", at, msg="must be one of append, insert with its index, and pop")
    index = len(digests) if place is None or place.index is None else place.index
    if index > len(digests) - (change.pop is not None):
        raise InvalidInput.at("body", "updates", at, "index", msg=f"must be less than the {len(digests)} rows")
    if change.pop is not None:
        return digests.pop(index)
    digests.insert(index, next(rows))
    return digests[index]


def query_table(call: RouteCall) -> Response:
    """Show rows of a table, in their order unless sorted."""
    body = control_body(TableQueryRequest, call, filter=RowsFilter)
    tables, place = call.platform.compat.traces.tables, place_of(call, body.project_id)
    wanted = frozenset(body.filter.row_digests) if body.filter and body.filter.row_digests is not None else None
    if wanted is None and not body.sort_by:
        found: Iterator[TableRow] = islice(tables.rows(body.digest, body.offset or 0, **place), body.limit)
    else:
        keep = None if wanted is None else wanted.__contains__
        rows: Iterable[TableRow] = tables.rows(body.digest, keep=keep, **place)
        for sort in reversed(body.sort_by or ()):
            rows = sorted(rows, key=partial(_value_of, sort.field), reverse=sort.direction == "desc")
        found = _window(iter(rows), body.limit, body.offset)
    return json_response(TableRows(tuple(TableRowObject(row.digest, row.value, row.index) for row in found)))


def _value_of(field: str, row: TableRow) -> tuple[int, Any]:
    return sort_key(DocumentField(field).of(row.value))


def count_table_rows(call: RouteCall) -> Response:
    """Count the rows of a table."""
    body = control_body(TableCountRequest, call)
    return json_response(
        TableCount(call.platform.compat.traces.tables.count(body.digest, **place_of(call, body.project_id)))
    )


# ---- files ---------------------------------------------------------------------------------------------------------


def create_trace_file(call: RouteCall) -> Response:
    """Store a file, sent as a form with the fields `project_id` and `file`; equal bytes are the same file."""
    fields, name, content = _form(call, call.file)
    body = structure(FileCreateForm, {**fields, "file": name}, "body")
    with problems_at("body"):
        made = call.platform.compat.traces.tables.put_file(
            name, content, expected=body.expected_digest or None, **place_of(call, body.project_id)
        )
    return json_response(FileCreated(made.digest))


def _form(call: RouteCall, data: BinaryIO) -> tuple[dict[str, str], str, bytes]:
    """Return the fields of a form, and the name and the bytes of its file. Raises `InvalidInput`, `BodyTooLarge`."""
    boundary = boundary_of(call.headers.text(b"content-type"))
    assert boundary is not None, "the media type was checked"
    fields, file = dict[str, str](), list[tuple[str, bytes]]()
    with problems_at("body"):
        for part in read_form(data, boundary):
            if part.name != "file":
                fields[part.name] = part.value()
                continue
            size, pieces = 0, list[bytes]()
            for piece in part.content:
                size += len(piece)
                if size > MAX_BODY:
                    raise BodyTooLarge(MAX_BODY)
                pieces.append(piece)
            file.append((part.filename or "", b"".join(pieces)))
        if len(file) != 1:
            raise InvalidInput.at("file", msg="must be given once")
    return fields, *file[0]


def read_trace_file(call: RouteCall) -> Response:
    """Send a file."""
    body = control_body(FileContentRequest, call)
    file, size = call.platform.compat.traces.tables.open_file(body.digest, **place_of(call, body.project_id))
    return download(file, size)


ROUTES: tuple[Route, ...] = (
    data_route("/obj/create", create_object, ObjectCreateRequest, ObjectCreated),
    control_route("/obj/read", read_object, ObjectReadRequest, ObjectAnswer),
    control_route("/obj/delete", delete_object, ObjectDeleteRequest, ObjectsDeleted),
    control_route("/objs/query", query_objects, ObjectsQueryRequest, ObjectsAnswer),
    control_route("/refs/read_batch", read_references, RefsReadRequest, RefsAnswer),
    data_route("/table/create", create_table, TableCreateRequest, TableCreated),
    data_route("/table/create_from_digests", create_table_of_digests, TableOfDigestsRequest, TableOfDigests),
    data_route("/table/update", update_table, TableUpdateRequest, TableUpdated),
    control_route("/table/query", query_table, TableQueryRequest, TableRows),
    control_route("/table/query_stats", count_table_rows, TableCountRequest, TableCount),
    documented_route(
        TRACES,
        Auth.BASIC,
        "POST",
        "/file/create",
        create_trace_file,
        body=Body.FORM,
        request=FileCreateForm,
        response=FileCreated,
    ),
    control_route("/file/content", read_trace_file, FileContentRequest, None, media="application/octet-stream"),
)
