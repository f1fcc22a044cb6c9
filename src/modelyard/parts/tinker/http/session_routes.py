"""The sessions of clients, and what a client asks before it has one."""

from functools import partial

import attrs

from modelyard.formats.converter import structure_exactly
from modelyard.http.errors import Gone
from modelyard.http.interface import Auth
from modelyard.http.message import Response, json_response
from modelyard.http.route import Body, Route, RouteCall, documented_route
from modelyard.parts.tinker.http.rest_routes import OFFSETS, SCOPE, offset_and_limit, runs_of, with_all_members
from modelyard.parts.tinker.http.schemas import (
    ChangingFlags,
    ClientFlags,
    ClientVersion,
    Healthy,
    HeartbeatAnswer,
    MadeSession,
    NewRunSession,
    ReportedEvents,
    ServerCapabilities,
    SessionEnd,
    SessionIds,
    SessionNamed,
    ShownSession,
    SupportedModel,
    TelemetryAnswer,
)
from modelyard.parts.tinker.interface import TINKER


def show_client_config(call: RouteCall) -> Response:
    """Tell a client how to behave, and close the connection where that can be asked for, as in HTTP/1.1.

    The client never uses it again, and does not close it: when that is collected, in whatever thread, the number of its
    socket may be another connection's, which is then read from no more until it times out after a minute.
    """
    structure_exactly(ClientVersion, call.body, "body")
    closing = [("connection", "close")] if b"connection" in call.headers else []
    return json_response(attrs.asdict(ClientFlags()), headers=closing)


def show_dynamic_client_config(call: RouteCall) -> Response:
    """Tell a client how to behave from now on."""
    structure_exactly(ClientVersion, call.body, "body")
    return with_all_members(ChangingFlags())


def show_tinker_health(call: RouteCall) -> Response:
    """Answer that the server is there."""
    return with_all_members(Healthy())


def show_tinker_capabilities(call: RouteCall) -> Response:
    """List the models that can be trained and sampled from."""
    entries, runs = call.platform.catalogue.list(), runs_of(call)
    return json_response(
        ServerCapabilities(
            tuple(SupportedModel(entry.id, entry.context_length, runs.trainable(entry.id), True) for entry in entries)
        )
    )


def create_session(call: RouteCall) -> Response:
    """Begin a session."""
    body = structure_exactly(NewRunSession, call.body, "body")
    session = runs_of(call).sessions.begin(
        project=body.project_id,
        tags=body.tags,
        metadata=body.user_metadata,
        display_name=body.display_name or "",
        sdk_version=body.sdk_version,
    )
    return with_all_members(MadeSession(session.id))


def keep_session_alive(call: RouteCall) -> Response:
    """Note that a client is there. One whose session has ended is told to stop."""
    session = runs_of(call).sessions.beat(structure_exactly(SessionNamed, call.body, "body").session_id)
    if session.finished:
        raise Gone(f"the session {session.id} has finished: {session.finished}")
    return with_all_members(HeartbeatAnswer())


def accept_telemetry(call: RouteCall) -> Response:
    """Accept what a client reports of itself, and keep nothing of it."""
    structure_exactly(ReportedEvents, call.body, "body")
    return with_all_members(TelemetryAnswer())


def list_sessions(call: RouteCall) -> Response:
    """List sessions, the newest first."""
    found = runs_of(call).sessions.list(*offset_and_limit(call, 20))
    return json_response(SessionIds(tuple(session.id for session in found.items)))


def show_session(call: RouteCall) -> Response:
    """Show what belongs to a session."""
    found = runs_of(call).sessions.get(call.params["session_id"])
    session = found.session
    return json_response(
        ShownSession(
            tuple(found.runs), tuple(found.samplers), dict(session.metadata) or None, session.display_name or None
        )
    )


def finish_session(call: RouteCall) -> Response:
    """End a session, and its runs after the commands that they have."""
    body = structure_exactly(SessionEnd, call.body, "body")
    runs_of(call).finish_session(call.params["session_id"], body.reason.type)
    return json_response({})


# ---- the table ---------------------------------------------------------------------------------------------------

_route = partial(documented_route, TINKER, Auth.API_KEY)
_post = partial(_route, "POST", body=Body.CONTROL)
BASE = "/api/v1"
_SESSION = f"{BASE}/sessions/{{session_id}}"

ROUTES: tuple[Route, ...] = (
    _route("GET", f"{BASE}/healthz", show_tinker_health, response=Healthy),
    _route("GET", f"{BASE}/get_server_capabilities", show_tinker_capabilities, response=ServerCapabilities),
    _post(f"{BASE}/client/config", show_client_config, request=ClientVersion, response=ClientFlags),
    _post(f"{BASE}/client/dynamic_config", show_dynamic_client_config, request=ClientVersion, response=ChangingFlags),
    _post(f"{BASE}/create_session", create_session, request=NewRunSession, response=MadeSession),
    _post(f"{BASE}/session_heartbeat", keep_session_alive, request=SessionNamed, response=HeartbeatAnswer),
    _post(f"{BASE}/telemetry", accept_telemetry, request=ReportedEvents, response=TelemetryAnswer),
    _route("GET", f"{BASE}/sessions", list_sessions, response=SessionIds, query=OFFSETS),
    _route("GET", _SESSION, show_session, response=ShownSession, query=SCOPE),
    _route("POST", f"{_SESSION}/finish", finish_session, body=Body.CONTROL, request=SessionEnd),
)
