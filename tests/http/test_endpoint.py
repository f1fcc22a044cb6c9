"""Every exchange: who is let in, what every answer carries, and how each interface says what went wrong."""

import logging
from itertools import product
from typing import Any

import pytest

from each import check_each, each_case
from every_route import routes
from modelyard.backends import ScriptedBackend
from modelyard.compose import open_platform
from modelyard.domain.catalogue import CatalogueEntry
from modelyard.errors import BackendError, StorageFull, StoreBusy
from modelyard.http.endpoint import Endpoint
from modelyard.http.interface import Auth, Interface
from modelyard.http.message import Request
from modelyard.platform.runtime import Settings
from modelyard.testing import ManualClock

GUARDED = [route for route in routes() if route.auth is not Auth.PUBLIC]
WRONG_CREDENTIALS = (None, "", "Bearer nothing", "Basic YTpi", "Bearer  x", "Digest x")
CATALOGUE = "/inference/analysis/partner/models"


def sample(path: str) -> str:
    """A path that leads to the route of this template."""
    return "/".join("x" if segment.startswith("{") else segment for segment in path.split("/"))


# ---- who is let in -----------------------------------------------------------------------------------------------


def test_only_the_catalogue_the_documents_and_the_probes_are_public() -> None:
    public = {route.path for route in Endpoint(open_platform()).table.routes if route.auth is Auth.PUBLIC}
    assert public - {"/llms.txt", "/llms-full.txt", "/inference/router/models"} == {
        CATALOGUE,
        "/openapi.json",
        "/docs",
        "/livez",
        "/readyz",
        "/health",
    }


@pytest.mark.slow
@each_case("route", GUARDED, ids=lambda route: f"{route.method} {route.path}")
def test_every_other_route_asks_who_calls(client: Any, route: Any) -> None:
    def check(case: tuple[str | None, str]) -> None:
        authorization, method = case
        headers = [] if authorization is None else [("authorization", authorization)]
        answer = client.send(
            method, sample(route.path), raw=b"{}", key="", headers=headers, check=method == route.method
        )
        if route.auth is Auth.ADDRESS:
            assert answer.status == 403
        else:
            assert answer.status == 401
            assert (
                answer.headers["www-authenticate"].lower().startswith("basic" if route.auth is Auth.BASIC else "bearer")
            )

    cases = product(WRONG_CREDENTIALS, (route.method, "OPTIONS"))
    check_each({f"{method}, {authorization!r}": (authorization, method) for authorization, method in cases}, check)


def test_a_route_takes_its_own_scheme_alone(client: Any) -> None:
    def check(route: Any) -> None:
        other = "Basic" if route.auth in (Auth.BEARER, Auth.API_KEY) else "Bearer"
        status = 403 if route.auth is Auth.ADDRESS else 401
        assert client.send(route.method, sample(route.path), raw=b"{}", auth=other).status == status

    check_each({f"{route.method} {route.path}": route for route in GUARDED if route.auth is not Auth.EITHER}, check)


@pytest.mark.parametrize(
    "path",
    ["/v1/fine_tuning/jobs/x/other", "/inference/v1", "/inference/v1/nothing", "/v2/x", "/evaluations/x", "/v1/"],
)
def test_below_a_guarded_prefix_only_known_callers_see_what_does_not_exist(client: Any, path: str) -> None:
    auth = "Basic" if path.startswith(("/v2", "/eval")) else "Bearer"
    assert client.send("GET", path, key="").status == 401
    assert client.send("GET", path, auth=auth).status == 404


@pytest.mark.parametrize("path", ["/", "/nothing", "/openapi.json/", "", "*", "//v1/health"])
def test_elsewhere_what_does_not_exist_is_plainly_not_there(client: Any, path: str) -> None:
    answer = client.send("GET", path, key="")
    assert answer.status == 404
    assert answer.json["reason"]


def test_a_header_of_a_proxy_or_a_host_changes_nothing(client: Any) -> None:
    lies = [("host", "evil/openapi.json"), ("x-forwarded-prefix", "/openapi.json"), ("x-original-url", CATALOGUE)]
    assert client.send("GET", "/v1/health", key="", headers=lies).status == 401
    assert "evil" not in str(client.send("GET", "/v1/health", headers=lies).headers)


def test_two_authorization_headers_are_malformed(client: Any) -> None:
    doubled = [("authorization", f"Bearer {client.key}")]
    assert client.send("GET", "/v1/health", headers=doubled).status == 400


def test_an_unknown_a_revoked_and_an_expired_key_are_refused_in_the_same_words(client_for: Any) -> None:
    from datetime import timedelta

    with open_platform() as platform:
        revoked, expired = (
            platform.keys.create("acme"),
            platform.keys.create("acme", expires_in=timedelta(microseconds=1)),
        )
        platform.keys.revoke(revoked.key.id)
        client = client_for(platform)
        answers = [client.send("GET", "/v1/health", key=key) for key in ("my_unknown", revoked.secret, expired.secret)]
    assert {answer.status for answer in answers} == {401}
    assert len({answer.raw for answer in answers}) == 1


def test_a_key_is_remembered_for_a_second_at_most(client_for: Any) -> None:
    clock = StillClock()
    with open_platform(clock=clock) as platform:
        client = client_for(platform)
        assert client.send("GET", "/v1/health").status == 200
        (key,) = platform.keys.list(entity="acme")
        platform.keys.revoke(key.id)
        clock.seconds += 1.0
        assert client.send("GET", "/v1/health").status == 401


class StillClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> Any:
        from datetime import UTC, datetime, timedelta

        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds

    def wait(self, event: Any, seconds: float) -> bool:
        self.seconds += seconds
        return bool(event.is_set())


def test_callers_do_not_see_each_other_s_views(client: Any) -> None:
    other = client.platform.keys.create("rival", ["books"])
    mine, theirs = (client.chat(key=key) for key in (client.key, other.secret))
    assert mine.status == theirs.status == 200
    booked = {(total.entity, total.project) for total in client.platform.usage.total(by=("entity", "project"))}
    assert booked >= {("acme", ""), ("rival", "books")}


# ---- what every answer carries -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/health"), ("GET", "/v1/nothing"), ("GET", "/nothing"), ("GET", CATALOGUE)]
)
def test_every_answer_has_its_own_request_id(client: Any, method: str, path: str) -> None:
    ids = {client.send(method, path).headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3


def test_a_fit_request_id_is_echoed_and_an_unfit_one_replaced(client: Any) -> None:
    fit = client.send("GET", "/v1/health", headers=[("x-request-id", "abc-1.2_3")])
    assert fit.headers["x-request-id"] == "abc-1.2_3"
    for unfit in ("", "a b", "a\r\nset-cookie: x", "é", "x" * 129):
        answer = client.send("GET", "/v1/health", headers=[("x-request-id", unfit)])
        assert answer.status == 200
        assert answer.headers["x-request-id"].startswith("req-")
    twice = client.send("GET", "/v1/health", headers=[("x-request-id", "a"), ("x-request-id", "a")])
    assert twice.headers["x-request-id"].startswith("req-")


def test_answers_to_callers_are_not_to_be_stored(client: Any) -> None:
    for path in ("/v1/health", "/v1/models", "/v1/nothing"):
        assert client.send("GET", path).headers["cache-control"] == "no-store"
        assert client.send("GET", path, key="").headers["cache-control"] == "no-store"


def test_head_is_get_without_the_body(client: Any) -> None:
    got, head = client.send("GET", "/v1/health"), client.send("HEAD", "/v1/health")
    assert (head.status, head.raw) == (200, b"")
    assert head.headers["content-length"] == got.headers["content-length"] == str(len(got.raw))
    assert client.send("HEAD", "/v1/nothing").status == 404
    assert client.send("HEAD", "/inference/v1/chat/completions/").status == 405


def test_options_names_the_methods_and_a_wrong_method_does_too(client: Any) -> None:
    requested = client.send("OPTIONS", "/v1/health")
    assert (requested.status, requested.headers["allow"], requested.raw) == (204, "GET, HEAD, OPTIONS", b"")
    refused = client.send("POST", "/v1/health", raw=b"{}", check=False)
    assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
    assert "detail" in refused.json
    strange = client.send("BREW", "/inference/v1/chat/completions", check=False)
    assert strange.status == 405
    assert strange.json["error"]["code"] == "method_not_allowed"


# ---- how each interface says what went wrong ---------------------------------------------------------------------


def test_each_interface_has_its_own_shape_of_errors(client: Any) -> None:
    chat = client.chat(model="nothing").json
    assert set(chat["error"]) == {"message", "type", "param", "code"}
    assert set(client.send("GET", "/v1/preview/training-jobs/none").json) == {"detail"}
    runs = client.send("GET", "/v2/acme/p/evaluation_runs", key="").json
    assert runs["reason"] == runs["detail"]
    assert client.send("GET", "/v1/models", key="").json["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    ("failure", "status", "reported"),
    [
        (StoreBusy("/secret/place.db is locked"), 503, "busy"),
        (StorageFull("/secret/place.db"), 507, "room"),
        (BackendError("the model fell over"), 502, "the model fell over"),
        (RuntimeError("secret"), 502, "RuntimeError"),
    ],
)
def test_an_internal_error_is_reported_without_its_secrets(
    failure: Exception, status: int, reported: str, client_for: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with open_platform(backend=Faulty(failure)) as platform:
        for asynchronous in (False, True):
            answer = client_for(platform, asynchronous).chat(model="faulty")
            assert answer.status == status
            assert reported in answer.json["error"]["message"]
            assert b"secret" not in answer.raw
    assert ("Traceback" in caplog.text) is isinstance(failure, RuntimeError)


class Faulty:
    """A backend that fails at once."""

    blocking = False

    def __init__(self, failure: Exception) -> None:
        self.failure = failure

    def entries(self) -> Any:
        return (CatalogueEntry("faulty", "h", "n", 0, "fp32", 100, 100),)  # type: ignore[arg-type]

    def capabilities(self, model: str) -> Any:
        from modelyard.protocols import Capabilities

        return Capabilities()

    def prompt_tokens(self, request: Any, model: Any) -> int:
        if not isinstance(self.failure, RuntimeError | BackendError):
            raise self.failure
        return 1

    def stream(self, request: Any, model: Any) -> Any:
        raise self.failure
        yield


def test_a_fault_of_ours_is_500_with_a_general_sentence_and_one_line_in_the_log(
    client_for: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from modelyard.platform.operations.health import Health

    def broken(self: Health) -> str:
        raise KeyError("secret\n\x1b[31mINFO all is well")

    monkeypatch.setattr(Health, "check", broken)
    with open_platform() as platform, caplog.at_level(logging.ERROR, "modelyard.http"):
        answer = client_for(platform).send("GET", "/v1/health", headers=[("x-request-id", "find-me")])
    assert answer.status == 500
    assert b"secret" not in answer.raw
    (record,) = caplog.records
    assert record.getMessage() == "request find-me failed: KeyError"
    first, *others = caplog.text.splitlines()
    assert first.endswith("request find-me failed: KeyError")
    assert all(line.startswith("  ") for line in others), "no other line looks like one of the log"
    assert any("test_endpoint.py" in line for line in others)
    assert "\x1b" not in caplog.text


def test_an_error_of_ours_is_one_line_and_the_traceback_of_its_cause(
    client_for: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with open_platform(backend=Faulty(BackendError("it\nfell over"))) as platform:
        client_for(platform).chat(model="faulty")
    assert caplog.text.count("\n") == 1
    assert "it\\nfell over" in caplog.text
    caplog.clear()
    with open_platform(backend=Faulty(RuntimeError("secret"))) as platform:
        client_for(platform).chat(model="faulty")
    first, *others = caplog.text.splitlines()
    assert first.endswith("failed: the backend failed with RuntimeError")
    assert others[-1] == "  RuntimeError: secret"
    assert sum("Traceback" in line for line in others) == 1


@pytest.mark.parametrize("header", ["x-api-key", "api-key"])
@pytest.mark.parametrize("path", ["/v1/complete", "/inference/v1/other"])
def test_a_path_without_a_route_takes_a_key_in_any_header(path: str, header: str, client_for: Any) -> None:
    with open_platform() as platform:
        client = client_for(platform)
        known, unknown = ([(header, secret)] for secret in (client.key, "my_unknown"))
        assert client.send("POST", path, {}, key="", headers=known).json["error"]["code"] == "unknown_route"
        assert client.send("POST", path, {}, key="", headers=unknown).status == 401
        assert client.send("POST", path, {}, key="").status == 401


@pytest.mark.parametrize("path", ["/v1/fine_tuning/jobs/x/other", "/v1/chat/other"])
def test_a_path_without_a_route_is_reported_in_both_formats_with_what_there_is(path: str, client_for: Any) -> None:
    with open_platform() as platform:
        answer = client_for(platform).send("POST", path, {})
    assert answer.status == 404
    assert answer.json["error"]["message"] == answer.json["detail"]
    assert answer.json["error"]["code"] == "unknown_route"
    assert "/openapi.json" in answer.json["detail"]


WRONG_BASES = {
    "/chat/completions": "/v1/chat/completions",
    "/models": "/v1/models",
    "/embeddings": "/v1/embeddings",
    "/v1/v1/chat/completions": "/v1/chat/completions",
    "/v1/v1/messages": "/v1/messages",
    "/v1/inference/v1/chat/completions": "/inference/v1/chat/completions",
    "/v1/chat/completions/chat/completions": "/v1/chat/completions",
}


@pytest.mark.parametrize("path", WRONG_BASES)
def test_a_wrong_base_url_is_told_the_path_that_was_meant(path: str, client_for: Any) -> None:
    with open_platform() as platform:
        answer = client_for(platform).send("POST", path, {}, check=False)
    assert answer.status == 404
    assert answer.json["error"]["message"] == f"the path {path} has no route; did you mean {WRONG_BASES[path]}?"
    assert answer.json["error"]["code"] == "unknown_route"


@pytest.mark.parametrize("path", ["/v1/files/a/b", "/v2/chat/completions", "/nothing", "/chat/other"])
def test_what_no_base_url_explains_is_told_no_other_path(path: str, client_for: Any) -> None:
    with open_platform() as platform:
        answer = client_for(platform).send("POST", path, {}, check=False)
    assert "did you mean" not in str(answer.json)


@pytest.mark.parametrize("path", ["/uploads/files/%FF", "/uploads/nothing", "/graphql/x"])
def test_an_address_that_cannot_be_read_is_reported_as_uploads_report_errors(path: str, client_for: Any) -> None:
    with open_platform() as platform:
        answer = client_for(platform).send("PUT", path, key="", check=False)
    assert answer.status == 404
    assert set(answer.json) == {"errors", "data"}


@pytest.mark.parametrize(
    ("method", "path"),
    [("PATCH", "/graphql"), ("TRACE", "/uploads/files/0"), ("PATCH", "/v1/health"), ("PUT", "/v2/a/b/datasets")],
)
def test_a_method_that_a_path_has_not_is_405_for_anybody(method: str, path: str, client_for: Any) -> None:
    with open_platform() as platform:
        answer = client_for(platform).send(method, path, key="", check=False)
    assert answer.status == 405
    assert answer.headers["allow"]


def test_every_503_says_when_to_come_again(client_for: Any) -> None:
    with open_platform() as platform:
        client = client_for(platform)
    answer = client.send("GET", "/v1/preview/models")
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ([], "used up"),
        ([object()], "a script cannot answer with"),
        ([["a", "b"]], "a script cannot stream a list of strings"),
        ([{"at": {1, 2}}], "cannot be written as JSON"),
    ],
)
def test_a_script_that_cannot_answer_is_asked_once_only(client_for: Any, script: list[Any], words: str) -> None:
    with open_platform(backend=ScriptedBackend(["one", *script])) as platform:
        client = client_for(platform)
        assert client.chat(model="scripted").status == 200
        answer = client.chat(model="scripted")
    assert (answer.status, answer.json["error"]["code"]) == (400, "no_answer_prepared")
    assert answer.headers["x-should-retry"] == "false"
    assert words in answer.json["error"]["message"]


def test_a_busy_store_asks_to_come_again(client_for: Any) -> None:
    with open_platform(backend=Faulty(StoreBusy("x"))) as platform:
        assert int(client_for(platform).chat(model="faulty").headers["retry-after"]) >= 1


def test_a_rate_limit_says_when_to_come_again(client_for: Any) -> None:
    with open_platform() as platform:
        client = client_for(platform)
        key = platform.keys.create("acme", requests_per_minute=1).secret
        assert client.chat(key=key).status == 200
        refused = client.chat(key=key)
        assert refused.status == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json["error"]["type"] == "rate_limit_error"


@pytest.mark.parametrize("stream", [False, True])
def test_every_answer_to_a_limited_key_says_what_is_left_of_its_rate(client_for: Any, stream: bool) -> None:
    def left(answer: Any) -> tuple[str, ...]:
        return tuple(answer.headers[f"x-ratelimit-{name}-requests"] for name in ("limit", "remaining", "reset"))

    with open_platform(clock=ManualClock()) as platform:
        client = client_for(platform)
        key = platform.keys.create("acme", requests_per_minute=2).secret
        assert [left(client.chat(key=key, stream=stream)) for _ in range(3)] == [
            ("2", "1", "30s"),
            ("2", "0", "60s"),
            ("2", "0", "60s"),
        ]
        assert not [name for name in client.chat().headers if name.startswith("x-ratelimit")]


def test_a_closed_platform_answers_503(client_for: Any) -> None:
    platform = open_platform()
    client = client_for(platform)
    platform.close()
    assert client.send("GET", "/v1/health").status == 503


# ---- interfaces, one by one --------------------------------------------------------------------------------------


STREAM = "/files/acme/demo/run/file_stream"


@pytest.mark.slow
@pytest.mark.parametrize("interface", list(Interface))
def test_each_interface_can_be_mounted_alone(interface: Interface, client_for: Any) -> None:
    with open_platform() as platform:
        client = client_for(platform, interfaces=[interface])
        there = {
            Interface.BASE: client.send("GET", CATALOGUE, key="").status,
            Interface.TRAINING: client.send("GET", "/v1/health").status,
            Interface.INFERENCE: client.send("GET", "/inference/v1/models").status,
            Interface.MESSAGES: 200 if client.send("POST", "/v1/messages", {}).status == 400 else 404,
            Interface.EMBEDDINGS: client.send("POST", "/v1/embeddings", {"model": "echo", "input": "a"}).status,
            Interface.RESPONSES: client.send("POST", "/v1/responses", {"model": "echo", "input": "hi"}).status,
            Interface.OPERATIONS: 200 if client.send("GET", "/metrics").status == 403 else 404,
            Interface.UPLOADS: 200 if client.send("POST", STREAM, key="").status == 401 else 404,
            Interface.FILES: client.send("GET", "/v1/files").status,
            Interface.COMPLETIONS: client.send("POST", "/v1/completions", {"model": "echo", "prompt": "a"}).status,
            Interface.BATCHES: client.send("GET", "/v1/batches").status,
            Interface.FINE_TUNING: client.send("GET", "/v1/fine_tuning/jobs").status,
            Interface.TINKER: client.send("GET", "/api/v1/training_runs").status,
            Interface.TRACES: 200 if client.send("GET", "/server_info", key="").status == 401 else 404,
        }
        assert there == {each: 200 if each is interface else 404 for each in Interface}
        assert client.send("GET", "/openapi.json", key="").status == 200


def test_the_endpoint_must_be_the_host_s() -> None:
    from modelyard.errors import Forbidden

    with open_platform() as platform:
        view = platform.acting_as(platform.keys.create("acme").key.principal())
        with pytest.raises(Forbidden):
            Endpoint(view)


# ---- bodies ------------------------------------------------------------------------------------------------------

SMALL = Settings(max_chat_body=200, max_control_body=100)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_body_beyond_its_cap_is_refused_without_reading_on(asynchronous: bool, client_for: Any) -> None:
    with open_platform(settings=SMALL) as platform:
        client = client_for(platform, asynchronous)
        path = "/inference/v1/chat/completions"
        assert client.send("POST", path, raw=[b"x" * 150] * 2).status == 413
        declared = client.send("POST", path, raw=never_read(), headers=[("content-length", "201")])
        assert declared.status == 413
        assert "200 bytes" in declared.json["error"]["message"]
        absurd = client.send("POST", path, raw=b"", headers=[("content-length", "9" * 5000)])
        assert absurd.status == 413


def never_read() -> Any:
    return [b"x"]


def test_reading_stops_at_the_cap(client_for: Any) -> None:
    read = []

    def endless() -> Any:
        while True:
            read.append(1)
            yield b"x" * 100

    with open_platform(settings=SMALL) as platform:
        client = client_for(platform)
        headers = [("authorization", f"Bearer {client.key}")]
        response = client.endpoint.handle(Request("POST", "/v1/chat/completions", "", headers, endless()))
    assert response.status == 413
    assert len(read) == 3


@pytest.mark.parametrize("length", ["-1", "abc", "", "1e3", "1, 1"])
def test_a_length_that_is_not_a_number_is_not_believed(client: Any, length: str) -> None:
    raw = b'{"model": "echo", "messages": [{"role": "user", "content": "x"}]}'
    answer = client.send("POST", "/inference/v1/chat/completions", raw=raw, headers=[("content-length", length)])
    assert answer.status == 200


@pytest.mark.parametrize(
    "media", [None, "application/json", "application/json; charset=utf-8", "APPLICATION/JSON ;charset=UTF-8"]
)
def test_json_may_be_declared_or_not(client: Any, media: str | None) -> None:
    assert client.chat(headers=[("content-type", media)] if media else []).status == 200


@pytest.mark.parametrize(
    "header",
    [
        ("content-type", "text/plain"),
        ("content-type", "application/xml"),
        ("content-type", "application/x-www-form-urlencoded"),
        ("content-type", "multipart/form-data; boundary=x"),
        ("content-type", "application/json; charset=utf-16"),
        ("content-type", ""),
        ("content-encoding", "gzip"),
        ("content-encoding", "br"),
    ],
)
def test_another_kind_of_body_is_415(client: Any, header: tuple[str, str]) -> None:
    answer = client.chat(headers=[header])
    assert answer.status == 415
    assert answer.json["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("revoked", [False, True])
@pytest.mark.parametrize(
    ("method", "path", "headers", "body"),
    [
        ("POST", "/v1/chat/completions", [], b'{"model": "echo", "messages": [{"role": "user", "content": "a"}]}'),
        ("POST", "/v1/preview/datasets", [("content-type", "application/jsonl")], b'{"messages": []}'),
    ],
)
def test_a_key_that_is_revoked_while_a_body_comes_is_refused(
    client_for: Any, method: str, path: str, headers: list[tuple[str, str]], body: bytes, revoked: bool
) -> None:
    clock = StillClock()

    def dripping() -> Any:
        yield body[:9]
        clock.seconds += 2
        if revoked:
            platform.keys.revoke(key.key.id)
        yield body[9:]

    with open_platform(clock=clock) as platform:
        client = client_for(platform)
        key = platform.keys.create("acme")
        headers = [("authorization", f"Bearer {key.secret}"), *headers]
        response = client.endpoint.handle(Request(method, path, "", headers, dripping()))
    assert (response.status == 401) is revoked


def test_a_slow_body_is_408(client_for: Any) -> None:
    clock = StillClock()

    def dripping() -> Any:
        for _ in range(100):
            clock.seconds += 1
            yield b" "

    with open_platform(clock=clock) as platform:
        client = client_for(platform)
        headers = [("authorization", f"Bearer {client.key}")]
        response = client.endpoint.handle(Request("POST", "/v1/chat/completions", "", headers, dripping()))
    assert response.status == 408
    assert 29 <= clock.seconds <= 32
