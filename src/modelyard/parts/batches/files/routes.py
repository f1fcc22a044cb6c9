"""The routes of files: `/files` of the chat format's own clients, on both of their bases."""

from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from functools import partial

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.identity import KeyedRequest
from modelyard.errors import InvalidInput
from modelyard.http.auth import attribution
from modelyard.http.idempotency import IDEMPOTENCY_KEY, idempotency_key
from modelyard.http.interface import Auth
from modelyard.http.listing import NEWEST_FIRST, requested_page
from modelyard.http.message import JSON_HEADER, Response, boundary_of, dump, json_response, problems_at
from modelyard.http.response_bodies import download
from modelyard.http.route import Body, Parameter, Route, RouteCall, documented_route
from modelyard.parts.batches.files.multipart import FormPart, read_form
from modelyard.parts.batches.files.records import StoredFile
from modelyard.parts.batches.files.schemas import (
    FileDeleted,
    FileObject,
    FilePage,
    FileUpload,
    file_deleted,
    file_object,
)
from modelyard.parts.batches.interface import FILES
from modelyard.platform.idempotency import answer_once
from modelyard.platform.platform import Platform
from modelyard.protocols import StoredArtifact

BASES = ("/v1", "/inference/v1")
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
_FIELDS = ("purpose", _ANCHOR, _SECONDS)
_LONGEST_NUMBER = 9


@attrs.define
class _Form:
    """What came of a form: the file, which is stored already, and the other fields."""

    filename: str = ""
    stored: StoredArtifact | None = None
    fields: dict[str, str] = attrs.field(factory=dict)

    def take(self, call: RouteCall, part: FormPart) -> None:
        """Read one part. Raises `InvalidInput`."""
        if part.name in self.fields or (part.name == "file" and self.stored is not None):
            raise InvalidInput.at(part.name, msg="must be given once")
        if part.name == "file":
            self.filename = part.filename or ""
            self.stored = call.spool.put(part.content)
        elif part.name in _FIELDS:
            self.fields[part.name] = part.value()
        else:
            raise InvalidInput.at(part.name, msg="is not a field of this form; send file, purpose, expires_after")

    def expires_after(self) -> timedelta | None:
        """Return how long the file is to be kept; None for ever. Raises `InvalidInput`."""
        if self.fields.get(_ANCHOR, "created_at") != "created_at":
            raise InvalidInput.at(_ANCHOR, msg="must be 'created_at'")
        if _SECONDS not in self.fields:
            if _ANCHOR in self.fields:
                raise InvalidInput.at(_SECONDS, msg="is required with expires_after[anchor]", type="missing")
            return None
        text = self.fields[_SECONDS]
        if not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER):
            raise InvalidInput.at(_SECONDS, msg="must be a whole number of seconds")
        return timedelta(seconds=int(text))


def upload_file(call: RouteCall) -> Response:
    """Upload a file, as a form with the fields `file` and `purpose`."""
    key, place = idempotency_key(call), attribution(call.headers, call.principal)
    began = call.platform.clock.monotonic()
    boundary, form = boundary_of(call.headers.text(b"content-type")), _Form()
    assert boundary is not None, "the media type was checked"
    with problems_at("body"), ExitStack() as unless_kept:
        for part in read_form(call.file, boundary):
            before = form.stored
            form.take(call, part)
            if form.stored is not before and form.stored is not None:
                unless_kept.enter_context(call.spool.remove_unless_recorded(form.stored))
        if form.stored is None:
            raise InvalidInput.at("file", msg="is required", type="missing")
        if "purpose" not in form.fields:
            raise InvalidInput.at("purpose", msg="is required", type="missing")
        expires_after, stored = form.expires_after(), form.stored

        def keep(platform: Platform) -> StoredFile:
            return platform.compat.files.keep(
                form.filename,
                stored,
                purpose=form.fields["purpose"],
                entity=place.entity,
                project=place.project or None,
                expires_after=expires_after,
                began=began,
            )

        if key is None:
            return json_response(file_object(keep(call.platform)))
        request = digest([call.request.raw_path, form.filename, dict(form.fields), stored.digest])
        return _once(call, KeyedRequest(call.principal, key, request), keep, stored)


def _once(
    call: RouteCall, request: KeyedRequest, keep: Callable[[Platform], StoredFile], stored: StoredArtifact
) -> Response:
    """Answer as an earlier request under the key was answered, or else keep the file."""
    kept: list[StoredFile] = []

    def create(platform: Platform) -> StoredFile:
        kept.append(keep(platform))
        return kept[0]

    text = answer_once(call.platform, request, create, lambda file: dump(file_object(file)).decode("ascii"))
    if not kept:
        call.spool.remove(stored)
    return Response(200, [JSON_HEADER], text.encode("ascii"))


def list_files(call: RouteCall) -> Response:
    """List files, the newest first."""
    place, purpose = attribution(call.headers, call.principal), call.one("purpose")
    listing = partial(
        call.platform.compat.files.list, purpose=purpose, entity=place.entity, project=place.project or None
    )
    return json_response(FilePage.of(requested_page(call, lambda order: listing(order=order), "desc")))


def show_file(call: RouteCall) -> Response:
    """Show a file."""
    return json_response(file_object(call.platform.compat.files.get(call.params["file_id"])))


def download_file(call: RouteCall) -> Response:
    """Download the content of a file."""
    file = call.platform.compat.files.get(call.params["file_id"])
    return download(call.platform.compat.files.open(file.id), file.size, file.filename)


def delete_file(call: RouteCall) -> Response:
    """Delete a file with its content."""
    return json_response(file_deleted(call.platform.compat.files.delete(call.params["file_id"])))


_route = partial(documented_route, FILES, Auth.BEARER)
_PURPOSE = Parameter("purpose", description="Only files of this purpose.")
_ID = {"file_id": "id"}


def _routes(base: str) -> tuple[Route, ...]:
    files = f"{base}/files"
    return (
        _route(
            "POST",
            files,
            upload_file,
            body=Body.FORM,
            request=FileUpload,
            response=FileObject,
            headers=(IDEMPOTENCY_KEY,),
            links=_ID,
        ),
        _route("GET", files, list_files, query=(*NEWEST_FIRST, _PURPOSE), response=FilePage),
        _route("GET", f"{files}/{{file_id}}", show_file, response=FileObject, links=_ID),
        _route("DELETE", f"{files}/{{file_id}}", delete_file, response=FileDeleted),
        _route("GET", f"{files}/{{file_id}}/content", download_file, media="application/octet-stream"),
    )


ROUTES: tuple[Route, ...] = tuple(route for base in BASES for route in _routes(base))
