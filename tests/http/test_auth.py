"""Reading who calls and whom to book on: strictly, and never saying more than needed."""

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from http_client import client_of
from modelyard import open_platform
from modelyard.domain.identity import Attribution, Principal, Scope, anonymous
from modelyard.errors import Forbidden, Unauthenticated
from modelyard.http import headers as headers_module
from modelyard.http.auth import attribution, is_loopback, secret_in
from modelyard.http.errors import MalformedRequest
from modelyard.http.headers import check_singular, headers_of
from modelyard.http.interface import Auth

KEY = "my_abcdefgh_" + "x" * 43


def basic(pair: str | bytes) -> str:
    return "Basic " + base64.b64encode(pair if isinstance(pair, bytes) else pair.encode()).decode()


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_a_bearer_key_is_read_in_any_case_of_the_scheme(scheme: str) -> None:
    assert secret_in(f"{scheme} {KEY}", Auth.BEARER, 512) == KEY


@pytest.mark.parametrize("pair", [f"api:{KEY}", f":{KEY}", f"é:{KEY}"])
def test_a_basic_key_is_the_password_of_any_user(pair: str) -> None:
    assert secret_in(basic(pair), Auth.BASIC, 512) == KEY


def test_the_first_colon_splits() -> None:
    assert secret_in(basic("user:pass:word"), Auth.BASIC, 512) == "pass:word"


@each_case(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Bearer  {KEY}",
        f" Bearer {KEY}",
        f"Bearer {KEY} ",
        f"Bearer\t{KEY}",
        f"Bearer {KEY},{KEY}",
        f"Bearer {KEY}, Basic x",
        f"Bearer {KEY}\r\n x",
        f"Bearer {KEY}\xe9",
        "Bearer =",
        "Bearer a===",
        "Bearer " + "x" * 513,
        "Bearer " + "x" * 65_536,
        f"Token {KEY}",
        basic(f"api:{KEY}"),
        KEY,
    ],
)
def test_what_is_not_a_bearer_key_is_refused(header: str | None) -> None:
    with pytest.raises(Unauthenticated) as refused:
        secret_in(header, Auth.BEARER, 512)
    assert KEY not in str(refused.value)


@each_case(
    "header",
    [
        None,
        f"Bearer {KEY}",
        "Basic",
        "Basic !!!!",
        "Basic abc",
        "Basic YXBpOmE",
        "Basic YXBp*OmE=",
        "Basic -_-_",
        basic("nocolon"),
        basic("api:"),
        basic(":"),
        basic("api:a\x00b"),
        basic("a\npi:key"),
        basic(b"api:\xff\xfe"),
        basic("api:" + "x" * 1100),
    ],
)
def test_what_is_not_a_basic_key_is_refused(header: str | None) -> None:
    with pytest.raises(Unauthenticated):
        secret_in(header, Auth.BASIC, 512)


@given(st.text(st.characters(max_codepoint=255)), st.sampled_from([Auth.BEARER, Auth.BASIC]))
def test_no_header_does_anything_but_read_or_be_refused(header: str, auth: Auth) -> None:
    try:
        secret = secret_in(header, auth, 512)
    except Unauthenticated:
        return
    assert secret


# ---- attribution -------------------------------------------------------------------------------------------------

ACME = Principal("k", "acme", Scope("acme"))
ONE_PROJECT = Principal("k", "acme", Scope("acme", frozenset({"books"})))


def booked(principal: Principal = ACME, **headers: str) -> Attribution:
    named, _ = headers_of([(name.replace("_", "-"), value) for name, value in headers.items()])
    return attribution(named, principal)


@pytest.mark.parametrize("header", ["openai_project", "compat_project"])
def test_either_header_names_team_and_project(header: str) -> None:
    assert booked(**{header: "acme/books"}) == Attribution("acme", "books")


def test_both_headers_may_agree() -> None:
    assert booked(openai_project="acme/books", compat_project="acme/books") == Attribution("acme", "books")


def test_without_a_header_the_key_s_own_team_and_only_project_are_booked() -> None:
    assert booked() == Attribution("acme", "")
    assert booked(ONE_PROJECT) == Attribution("acme", "books")


@each_case(
    "headers",
    [
        {"openai_project": "acme/books", "compat_project": "acme/other"},
        {"openai_project": "acme"},
        {"openai_project": ""},
        {"openai_project": "/"},
        {"openai_project": "acme/"},
        {"openai_project": "/books"},
        {"openai_project": "acme/books/more"},
        {"openai_project": "acme/b ooks"},
        {"openai_project": "acme/.."},
        {"openai_project": "acme/b\xe9"},
        {"compat_project": "acme/" + "x" * 129},
        {"compat_project": "acme/a,acme/b"},
    ],
)
def test_headers_that_disagree_or_cannot_be_read_are_malformed(headers: dict[str, str]) -> None:
    with pytest.raises(MalformedRequest):
        booked(**headers)


def test_a_header_sent_twice_is_malformed_even_when_both_agree() -> None:
    pair = ("openai-project", "acme/books")
    headers, doubled = headers_of([pair, pair, ("x-request-id", "a"), ("x-request-id", "b"), ("accept", "c")])
    assert headers == {b"accept": b"c"}
    with pytest.raises(MalformedRequest):
        check_singular(doubled)
    check_singular({b"x-request-id"})


NAMES = st.sampled_from(["host", "Host", "authorization", "AUTHORIZATION", "x-new", "X-New", *map(str, range(300))])
VALUES = st.text(st.characters(max_codepoint=255))


@given(st.lists(st.tuples(NAMES, VALUES)))
def test_headers_are_the_same_as_text_and_as_bytes_in_capitals_or_not(pairs: list[tuple[str, str]]) -> None:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in pairs]
    lower = [name.lower() for name, _ in pairs]
    once = {name.lower(): value for name, value in pairs if lower.count(name.lower()) == 1}
    doubled = {name.encode() for name in lower if lower.count(name) > 1}
    for _ in range(2):  # names that were met before are read in a shorter way
        for sent in (pairs, raw):
            headers, twice = headers_of(sent)
            assert (headers.texts(), twice) == (once, doubled)
    assert headers.text(b"host") == once.get("host")
    assert len(headers_module._lower_names) <= headers_module.MAX_NAMES


@pytest.mark.parametrize(("principal", "named"), [(ACME, "rival/books"), (ONE_PROJECT, "acme/other")])
def test_what_the_key_does_not_hold_is_forbidden(principal: Any, named: str) -> None:
    with pytest.raises(Forbidden):
        booked(principal, openai_project=named)


@each_case("host", ["localhost", "localhost:8000", "127.0.0.1:80", "127.1.2.3", "[::1]:8000"])
def test_a_loopback_host_is_known_by_its_name(host: str) -> None:
    assert is_loopback(host)


@each_case("host", ["", "localhost.example", "127.0.0.1.example", "0.0.0.0", "10.0.0.1", "[::", "a@b:c"])
def test_no_other_host_is_a_loopback_one(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parts
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "127.0.0.1:8000"}, 200),
        ({}, 200),
        ({"host": "localhost", "origin": "http://localhost:3000"}, 200),
        ({"host": "rebound.example"}, 401),
        ({"host": "localhost", "origin": "https://page.example"}, 401),
        ({"host": "localhost", "origin": "null"}, 401),
        ({"host": "localhost", "authorization": "Bearer EMPTY"}, 401),
    ],
)
def test_who_calls_without_a_key_is_the_entity_that_the_host_named(headers: dict[str, str], status: int) -> None:
    with open_platform() as platform:
        client = client_of(platform, anonymous=anonymous("local"))
        body = {"model": "echo", "prompt": "a"}
        assert client.send("POST", "/v1/completions", body, key="", headers=headers.items()).status == status
        used = platform.usage.total(by=["entity", "key"])
        assert [(total.entity, total.key) for total in used] == [("local", "anonymous")] * (status == 200)
        closed = client_of(platform)
        assert closed.send("POST", "/v1/completions", body, key="", headers=headers.items()).status == 401
