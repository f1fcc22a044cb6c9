"""The part of the W&B upload protocol that carries training data (`Interface.UPLOADS`), mounted only on request.

The unmodified client uploads an artifact of one JSON Lines file with it, which becomes a version of a dataset: GraphQL
operations, two addresses to put files at, and the stream of a run, which is not kept.
"""

from collections.abc import Mapping
from functools import partial

from modelyard.domain.identity import Principal
from modelyard.formats.converter import structure
from modelyard.http.interface import Auth
from modelyard.http.message import Response, json_response
from modelyard.http.route import Body, Route, RouteCall, documented_route
from modelyard.parts.uploads import graphql_request as graphql
from modelyard.parts.uploads.graphql import FILE, MANIFEST, OPERATIONS
from modelyard.parts.uploads.graphql_request import GraphQLAnswer, GraphQLRequest
from modelyard.parts.uploads.interface import UPLOADS
from modelyard.parts.uploads.schemas import (
    Manifest,
    Received,
    RunStream,
    StreamAnswer,
)
from modelyard.platform.platform import Platform


def perform_graphql(call: RouteCall) -> Response:
    """Perform one operation of the upload of an artifact."""
    return graphql.perform(call, OPERATIONS, "upload an artifact")


def put_upload_file(call: RouteCall) -> Response:
    """Store the file of an upload."""
    call.platform.compat.uploads.receive(call.params["file"], call.file)
    return json_response(Received())


def put_upload_manifest(call: RouteCall) -> Response:
    """Compare the list of files of an upload with the file that came."""
    manifest = structure(Manifest, call.body, "body")
    call.platform.compat.uploads.check_manifest(call.params["manifest"], manifest.digests)
    return json_response(Received())


def accept_run_stream(call: RouteCall) -> Response:
    """Accept a piece of the stream of a run, which is not kept."""
    structure(RunStream, call.body, "body")
    call.principal.require(call.params["entity"], call.params["project"])
    return json_response(StreamAnswer(None, {}))


def _owner(platform: Platform, address: Mapping[str, str]) -> Principal:
    """Identify the caller by the address of an upload, which holds its own secret. Raises `Forbidden`."""
    ((part, secret),) = address.items()
    return platform.compat.uploads.authenticate(part, secret)


_route = partial(documented_route, UPLOADS)
_secret_route = partial(_route, Auth.ADDRESS, "PUT", response=Received, admit=_owner)


ROUTES: tuple[Route, ...] = (
    _route(
        Auth.BASIC,
        "POST",
        "/graphql",
        perform_graphql,
        body=Body.CONTROL,
        request=GraphQLRequest,
        response=GraphQLAnswer,
    ),
    _secret_route(FILE, put_upload_file, body=Body.DATA),
    _secret_route(MANIFEST, put_upload_manifest, body=Body.CONTROL, request=Manifest),
    _route(
        Auth.BASIC,
        "POST",
        "/files/{entity}/{project}/{run}/file_stream",
        accept_run_stream,
        body=Body.CHAT,
        request=RunStream,
        response=StreamAnswer,
    ),
)
