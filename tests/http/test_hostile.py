"""What strangers, fuzzers and buggy clients send: a precise 4xx in the interface's own words, and nothing stored."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from each import check_each, each_case
from every_route import routes
from example_counts import examples
from modelyard.compose import open_platform
from modelyard.domain.schema import RECORDS
from modelyard.domain.usage import LedgerEntry
from modelyard.http.endpoint import Endpoint
from modelyard.http.interface import Auth, ErrorFormat
from modelyard.http.message import Request
from modelyard.http.route import Body, Route

CHAT = "/inference/v1/chat/completions"
ROUTES = routes()
TAKING_JSON = [
    route for route in routes() if route.body in (Body.CONTROL, Body.CHAT) and route.auth is not Auth.ADDRESS
]
TAKING_DATA = [route for route in ROUTES if route.body in (Body.DATA, Body.EXPORT)]

NO_JSON = {
    "nothing at all": b"",
    "no JSON": b"hello",
    "half of an object": b'{"model": "echo"',
    "two values": b"{} {}",
    "a trailing comma": b'{"a": 1,}',
    "single quotes": b"{'a': 1}",
    "a comment": b"{} // x",
    "NaN": b'{"temperature": NaN}',
    "Infinity": b'{"temperature": Infinity}',
    "-Infinity": b'{"temperature": -Infinity}',
    "1e400": b'{"temperature": 1e400}',
    "an integer beyond 64 bits": b'{"seed": 18446744073709551616}',
    "an integer below 64 bits": b'{"seed": -9223372036854775809}',
    "4,301 digits": b'{"seed": ' + b"9" * 4301 + b"}",
    "a lone surrogate": b'{"model": "\\ud800"}',
    "a lone surrogate as a key": b'{"\\ud800": 1}',
    "surrogates the wrong way round": b'{"model": "\\udc00\\ud800"}',
    "a surrogate in UTF-8": b'{"model": "\xed\xa0\x80"}',
    "Latin-1": b'{"model": "\xe9"}',
    "an over-long slash": b'{"model": "\xc0\xaf"}',
    "UTF-16": '{"model": "echo"}'.encode("utf-16"),
    "UTF-32": '{"model": "echo"}'.encode("utf-32"),
    "a byte order mark": b'\xef\xbb\xbf{"model": "echo"}',
    "a key that stands twice": b'{"model": "echo", "model": "other"}',
    "an inner key that stands twice": b'{"messages": [{"role": "user", "role": "system"}]}',
    "65 levels": b"[" * 65 + b"]" * 65,
    "a hundred thousand levels": b"[" * 100_000 + b"]" * 100_000,
    "a hundred thousand objects in one another": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "levels without end": b"[" * 100_000,
    "too many small objects": b"[" + b"{}," * 150_000 + b"{}]",
    "a raw control character": b'{"model": "a\x00b"}',
    "a raw line feed in a text": b'{"model": "a\nb"}',
    "nothing but spaces": b" " * 1000,
    "a number that begins with 0": b'{"seed": 01}',
    "a compressed body": b"\x1f\x8b\x08\x00",
    "XML": b"<?xml version='1.0'?><!DOCTYPE a [<!ENTITY x SYSTEM 'file:///etc/passwd'>]><a>&x;</a>",
    "a form": b"model=echo&messages=x",
}

NO_OBJECT = {
    "null": b"null",
    "true": b"true",
    "a number": b"5",
    "a text": b'"echo"',
    "a list": b"[]",
    "a list of objects": b"[{}]",
}

HOSTILE_TEXTS = [
    "\x00",
    "a\x00b",
    "../../etc/passwd",
    "..",
    "'; DROP TABLE ledger; --",
    "%00",
    "%s%n",
    "${jndi:ldap://x}",
    "{{7*7}}",
    "__import__('os').system('id')",
    "\u202e\u2066",
    "\ufffe",
    "\r\nSet-Cookie: x",
    "é" * 300,
    "a" * 100_000,
    "file:///etc/passwd",
    "http://169.254.169.254/latest",
]

HOSTILE_SEGMENTS = (
    "%00",
    "%2e%2e",
    "..",
    "%ff",
    "%2F",
    "a%2Fb",
    "a" * 10_240,
    "%",
    "%C0%AF",
    "'%20OR%201=1",
    "%0d%0a",
    "*",
)


@pytest.fixture(scope="module")
def client(platform: Any, client_for: Any) -> Any:
    """One face of the endpoint is enough here: both are driven by the same flow."""
    return client_for(platform)


@pytest.fixture(scope="module")
def everything(platform: Any) -> Any:
    """How many records there are of each kind, keys apart."""

    kept = platform._runtime.store
    whole = [
        (record.table, record.cls, name)
        for record in RECORDS
        for name in [name for name, index in record.indexes.items() if not index.where][:1]
        if record.table != "api_keys"
    ]

    def count_in(snapshot: Any) -> dict[str, int]:
        found = {table: len(snapshot.page(cls, name, limit=10_000)) for table, cls, name in whole}
        return {**found, "ledger": len(snapshot.page(LedgerEntry, "by_entity", "acme", limit=10_000))}

    return lambda: kept.read(count_in)


def named(route: Route) -> str:
    return f"{route.method} {route.path}"


def sample(route: Route) -> str:
    path = route.path.replace("{entity}", "acme").replace("{project}", "p")
    return "/".join("x" if segment.startswith("{") else segment for segment in path.split("/"))


def credentials(route: Route) -> dict[str, str]:
    schemes = {Auth.BASIC: "basic", Auth.BEARER: "bearer", Auth.API_KEY: "bearer", Auth.EITHER: "bearer"}
    return {"auth": schemes[route.auth]} if route.auth in schemes else {"key": ""}


def refused(answer: Any, error_format: ErrorFormat) -> bool:
    """The answer is a 4xx in the words of its interface."""
    body = answer.json
    shape = {"error": "error", "errors": "errors", "type": "error"}.get(error_format.name, "detail")
    return 400 <= answer.status < 500 and shape in body


def message(body: Any) -> str:
    """What is said to be wrong, in any error format."""
    if "error" in body:
        return str(body["error"]["message"])
    if "errors" in body:
        return str(body["errors"][0]["message"])
    return body["detail"] if isinstance(body["detail"], str) else str(body["detail"][0]["msg"])


@pytest.mark.parametrize("route", TAKING_JSON, ids=named)
def test_a_body_that_is_not_a_json_object_is_refused_and_stores_nothing(
    client: Any, everything: Any, route: Route
) -> None:
    before = everything()

    def check(raw: bytes) -> None:
        answer = client.send(route.method, sample(route), raw=raw, **credentials(route))
        if raw == b"null" and route.body is Body.CONTROL:
            assert answer.status < 500  # null is as good as no body where none is needed
        else:
            assert refused(answer, route.error_format)
            usual = 400 if route.error_format.name in ("error", "errors", "type") else 422
            hosts_only = {403} if route.path.startswith("/v1/admin/") else set()
            assert answer.status in {usual} | hosts_only
            assert message(answer.json)
        assert everything() == before
        assert b"passwd" not in answer.raw

    check_each({name: raw for name, raw in (NO_JSON | NO_OBJECT).items() if raw}, check)


@pytest.mark.parametrize("route", TAKING_DATA, ids=named)
def test_data_at_fault_is_refused_and_leaves_nothing(client: Any, everything: Any, route: Route) -> None:
    client.platform.models.create("m", project="p", base_model="tabular-mini", entity="acme", return_existing=True)

    def check(raw: bytes) -> None:
        before = everything()
        answer = client.send(route.method, sample(route), raw=raw, query="project=p&name=d", check=False)
        least = 200 if route.body is Body.EXPORT else 400  # of an export what can be read is read, here no span
        assert least <= answer.status < 500
        assert everything() == before
        assert list(client.platform._runtime.artifacts.names()) == []

    check_each(NO_JSON | NO_OBJECT, check)


def test_no_body_is_quoted_in_its_refusal(client: Any) -> None:
    def check(raw: bytes) -> None:
        assert b"canary" not in client.send("POST", CHAT, raw=b'{"my_secret_canary": ' + raw).raw

    check_each(NO_JSON, check)


@pytest.mark.parametrize("place", ["model", "role", "content", "name", "stop", "user", "key", "tool"])
def test_a_hostile_text_is_data_wherever_it_stands(client: Any, place: str) -> None:
    def check(text: str) -> None:
        for stream in (False, True):
            answer = client.send("POST", CHAT, {**body_with(text, place), "stream": stream}, check=False)
            assert answer.status < 500
            assert "set-cookie" not in answer.headers
            if place in ("role", "tool"):
                assert answer.status == 400

    check_each({ascii(text)[:20]: text for text in HOSTILE_TEXTS}, check)


def body_with(text: str, place: str) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": text if place == "role" else "user",
        "content": text if place == "content" else "x",
    }
    if place == "name":
        message["name"] = text
    body: dict[str, Any] = {"model": text if place == "model" else "echo", "messages": [message], "max_tokens": 5}
    if place in ("stop", "user"):
        body[place] = text
    if place == "key":
        body[text] = {"a": text}
    if place == "tool":
        body["tools"] = [{"type": "function", "function": {"name": text}}]
    return body


@pytest.mark.parametrize("text", HOSTILE_TEXTS, ids=[ascii(text)[:20] for text in HOSTILE_TEXTS])
def test_a_content_comes_back_as_it_was_said(client: Any, text: str) -> None:
    answer = client.chat(text)
    assert answer.status in (200, 400)
    if answer.status == 200:
        assert answer.json["choices"][0]["message"]["content"] == text


@each_case("route", [route for route in ROUTES if "{" in route.path], ids=named)
def test_a_hostile_path_parameter_is_not_found(client: Any, route: Route) -> None:
    def check(segment: str) -> None:
        path = "/".join(segment if part.startswith("{") else part for part in route.path.split("/"))
        answer = client.send(route.method, path, raw=b"{}", check=False, **credentials(route))
        assert 400 <= answer.status < 500
        assert all("\r" not in value and "\n" not in value for value in answer.headers.values())

    check_each({segment[:20]: segment for segment in HOSTILE_SEGMENTS}, check)


@pytest.mark.parametrize(
    "query",
    [
        "limit=-1",
        "limit=1e9",
        "limit=" + "9" * 5000,
        "after=%00",
        "%ff=%ff",
        "a=%ed%a0%80",
        "é=1",
        "&" * 5000,
        "limit=1&limit=2",
        "offset=x",
        "order=drop",
    ],
)
def test_a_hostile_query_is_not_a_fault_of_ours(client: Any, query: str) -> None:
    for route in ROUTES:
        if route.method == "GET":
            answer = client.send("GET", sample(route), query=query, check=False, **credentials(route))
            assert answer.status < 500 or route.path == "/v1/system-check"


def test_numbers_without_a_bound_are_refused(client: Any) -> None:
    for member in ("n", "max_tokens", "top_logprobs", "top_k"):
        assert client.chat(**{member: 2**62}).status == 400
    wide = {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 40_000}]}
    assert client.send("POST", CHAT, {"model": "echo", **wide}, check=False).status == 400


# ---- fuzz --------------------------------------------------------------------------------------------------------

paths = st.sampled_from([sample(route) for route in ROUTES])
pieces = st.text(st.characters(max_codepoint=255), max_size=20)
bodies = st.binary(max_size=200) | st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["model", "messages", "role", "content", "stream", "n", "stop", "tools", "evaluation", "summary"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
).map(lambda value: json.dumps(value).encode())
names = st.sampled_from(
    [
        "authorization",
        "content-type",
        "content-length",
        "content-encoding",
        "openai-project",
        "compat-project",
        "x-request-id",
    ]
    + ["if-none-match", "host", "accept"]
)


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[tuple[Endpoint, str]]:
    with open_platform() as platform:
        yield Endpoint(platform), platform.keys.create("acme").secret


@pytest.mark.slow
@examples(120, suppress_health_check=[HealthCheck.too_slow])
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "get", "", "\x00"]),
    path=paths | st.tuples(paths, pieces).map("".join) | pieces,
    query=st.just("") | pieces,
    headers=st.lists(st.tuples(names, pieces), max_size=4),
    body=bodies,
    scheme=st.sampled_from(["Bearer", "Basic", ""]),
)
def test_no_request_is_answered_with_a_fault_of_ours(
    fuzzed: tuple[Endpoint, str], method: str, path: str, query: str, headers: Any, body: bytes, scheme: str
) -> None:
    import base64

    endpoint, key = fuzzed
    token = base64.b64encode(f"api:{key}".encode()).decode() if scheme == "Basic" else key
    sent = [*headers, ("authorization", f"{scheme} {token}")] if scheme else headers
    response = endpoint.handle(Request(method, path, query, sent, iter([body])))
    if not isinstance(response.body, bytes):
        list(response.body)  # type: ignore[arg-type]
    assert response.status < 500 or path.startswith("/v1/system-check")
    assert all(value.isascii() and value.isprintable() for _, value in response.headers)
