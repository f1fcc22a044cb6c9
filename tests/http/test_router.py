"""Paths: one match, strictly decoded once, whatever a client or a server in between makes of them."""

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from every_route import routes
from modelyard.http.endpoint import FIRST, route_table
from modelyard.http.error_responses import DETAIL
from modelyard.http.errors import MethodNotAllowed, UnknownRoute
from modelyard.http.interface import Auth, Interface
from modelyard.http.message import Response
from modelyard.http.route import Route, RouteCall
from modelyard.http.router import HttpRouter, mounted_path
from modelyard.part import standard_parts


def answer(call: RouteCall) -> Response:
    return Response(200, [], b"")


def route(method: str, path: str, auth: Auth = Auth.BEARER) -> Route:
    return Route(method, path, Interface.TRAINING, auth, answer)


TABLE = HttpRouter(
    [
        route("GET", "/open", Auth.PUBLIC),
        route("POST", "/v1/chat"),
        route("POST", "/v1/chat/"),
        route("GET", "/v1/jobs/{job_id}"),
        route("DELETE", "/v1/jobs/{job_id}"),
        route("GET", "/v1/jobs/{job_id}/events"),
        route("GET", "/v1/models"),
        route("GET", "/v1/models/{id...}"),
    ]
)


def found(raw: str) -> tuple[str, dict[str, str]] | None:
    match = TABLE.match(raw)
    return (next(iter(match.routes.values())).path, dict(match.params)) if match.routes else None


@each_case(
    ("raw", "path", "params"),
    [
        ("/open", "/open", {}),
        ("/%6Fpen", "/open", {}),
        ("/v1/chat", "/v1/chat", {}),
        ("/v1/chat/", "/v1/chat/", {}),
        ("/v1/jobs/a-1", "/v1/jobs/{job_id}", {"job_id": "a-1"}),
        ("/v1/jobs/%61%C3%A9", "/v1/jobs/{job_id}", {"job_id": "aé"}),
        ("/v1/jobs/x/events", "/v1/jobs/{job_id}/events", {"job_id": "x"}),
        ("/v1/models/a/b:step3", "/v1/models/{id...}", {"id": "a/b:step3"}),
        ("/v1/models/a%2Fb", "/v1/models/{id...}", {"id": "a/b"}),
        ("/v1/models/modelyard:///a/b/c", "/v1/models/{id...}", {"id": "modelyard:///a/b/c"}),
    ],
)
def test_a_path_leads_to_its_route(raw: str, path: str, params: dict[str, str]) -> None:
    assert found(raw) == (path, params)


@each_case(
    "raw",
    [
        "",
        "*",
        "open",
        "//open",
        "/open/",
        "/OPEN",
        "/v1//chat",
        "/v1%2Fchat",
        "/v1/./chat",
        "/x/../open",
        "/v1/jobs/",
        "/v1/jobs/..",
        "/v1/jobs/%2e%2E",
        "/v1/jobs/.",
        "/v1/jobs/a%2Fevents",
        "/v1/jobs/a%00",
        "/v1/jobs/%0a",
        "/v1/jobs/%ff",
        "/v1/jobs/%C0%AF",
        "/v1/jobs/%ed%a0%80",
        "/v1/jobs/%zz",
        "/v1/jobs/\xe9",
        "/v1/jobs/" + "a" * 10_240,
        "/v1/models/",
        "/v1/models/a%00b",
        "/v1/models/" + "a/" * 10_000,
        "/v1/jobs/a/events/",
    ],
)
def test_a_path_that_is_nearly_right_is_not_found(raw: str) -> None:
    match = TABLE.match(raw)
    with pytest.raises(UnknownRoute):
        match.route("GET")


@each_case("raw", ["/v1", "/v1/", "/v1/nothing", "/v1/jobs/%ff", "/%76%31/x", "/v1/../open"])
def test_below_a_guarded_prefix_even_nothing_asks_who_calls(raw: str) -> None:
    match = TABLE.match(raw)
    assert match.auth is Auth.API_KEY
    assert match.error_format is DETAIL


@each_case(
    ("raw", "auth"),
    [("/inference/v1/x", Auth.API_KEY), ("/v2/a/b", Auth.BASIC), ("/evaluations/x", Auth.BASIC), ("/x", Auth.PUBLIC)],
)
def test_each_prefix_has_the_scheme_of_its_interface(raw: str, auth: Auth) -> None:
    assert TABLE.match(raw).auth is auth


@each_case("base", ["/v1", "/inference/v1", "/openai/v1", "/openai", "/openai/deployments/m"])
@each_case("name", ["images", "audio", "moderations", "conversations", "nosuch"])
def test_a_path_that_is_not_there_is_named_and_so_is_an_interface_of_vendors(base: str, name: str) -> None:
    path = f"{base}/{name}/generations"
    with pytest.raises(UnknownRoute) as refused:
        TABLE.match(path).route("POST")
    assert path in str(refused.value)
    assert (f"modelyard has no {name}" in str(refused.value)) is (name != "nosuch")


@given(st.text(max_size=400))
def test_the_path_that_is_named_forges_nothing(path: str) -> None:
    told = TABLE.match(f"/nosuch/{quote(path, safe='')}").missing
    assert told.isascii()
    assert told.isprintable()
    assert len(told) < 300


def test_another_method_is_refused_naming_those_that_are_there() -> None:
    match = TABLE.match("/v1/jobs/x")
    with pytest.raises(MethodNotAllowed) as refused:
        match.route("PUT")
    assert refused.value.allow == "DELETE, GET, HEAD, OPTIONS"
    assert match.route("HEAD").method == "GET"
    with pytest.raises(MethodNotAllowed):
        TABLE.match("/v1/chat").route("HEAD")
    with pytest.raises(MethodNotAllowed):
        match.route("get")


def test_a_table_refuses_two_routes_in_one_place() -> None:
    with pytest.raises(TypeError):
        HttpRouter([route("GET", "/a"), route("GET", "/a")])
    with pytest.raises(TypeError):
        HttpRouter([route("GET", "/a/{x}"), route("GET", "/a/{y}/b")])


@given(st.text(st.characters(max_codepoint=255), max_size=60))
def test_no_path_breaks_the_table(raw: str) -> None:
    match = TABLE.match("/v1/jobs/" + raw)
    for value in match.params.values():
        assert value.isprintable() or any(ord(character) > 126 for character in value)
        assert "\x00" not in value


@each_case(
    ("raw", "path", "root", "mounted"),
    [
        ("/v1/a%2Fb", "/v1/a/b", "", "/v1/a%2Fb"),
        ("/ai/v1/a%2Fb", "/ai/v1/a/b", "/ai", "/v1/a%2Fb"),
        ("/ai/v1", "/ai/v1", "/ai/", "/v1"),
        ("/x/y/v1", "/x/y/v1", "/x/y", "/v1"),
        ("/%61i/v1", "/ai/v1", "/ai", "/v1"),
        ("/v1/x", "/v1/x", "/ai", "/v1/x"),
        (None, "/ai/v1/a b", "/ai", "/v1/a%20b"),
        (None, "/v1/é", "", "/v1/%C3%A9"),
        ("/rewritten/away", "/v1/x", "", "/v1/x"),
        ("/v1x/y", "/v1x/y", "/v1", "/v1x/y"),
        ("/ai", "/ai", "/ai", "/"),
    ],
)
def test_the_path_below_the_mount_point(raw: str | None, path: str, root: str, mounted: str) -> None:
    assert mounted_path(raw, path, root) == mounted


@pytest.mark.parts
def test_what_the_trace_client_may_ask_for_in_vain_is_refused_by_name() -> None:
    table = route_table(frozenset(Interface), tuple(standard_parts()))
    for path, words in (
        ("/cost/create", "the ledger"),
        ("/objs/prompt/aliases", "aliases"),
        ("/annotation_queues/x/items", "feedback"),
        ("/calls/usage", "usage"),
        ("/nothing", "openapi.json"),
    ):
        with pytest.raises(UnknownRoute, match=words):
            table.match(path).route("POST")


def test_what_is_loaded_first_stays_when_the_rest_is_loaded() -> None:
    """A path whose routes are loaded before the others may have further methods, which the whole table has."""
    first = {(route.method, route.path) for route in FIRST if "{" not in route.path}
    paths = {path for _, path in first}
    assert {(route.method, route.path) for route in routes() if route.path in paths} >= first
    table = route_table(None, tuple(standard_parts()))
    assert set(HttpRouter(FIRST).exact) == paths
    assert {(route.method, route.path) for route in table.routes} > first
