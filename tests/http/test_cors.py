"""Cross-origin requests: a preflight is answered without a key for allowed origins only."""

from typing import Any

import pytest

from modelyard.asgi import asgi_app
from modelyard.errors import InvalidInput
from modelyard.http.endpoint import Endpoint
from modelyard.platform.platform import Platform

PAGE = "https://app.example.com"
CHAT = "/inference/v1/chat/completions"
ASKED = [("access-control-request-method", "POST"), ("access-control-request-headers", "authorization,content-type")]


@pytest.fixture(params=[[PAGE, "http://localhost:3000"], ["*"]], ids=["named", "all"])
def allowing(request: pytest.FixtureRequest, platform: Platform, client_for: Any) -> Any:
    return client_for(platform, cors_origins=request.param)


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def strict(request: pytest.FixtureRequest, platform: Platform, client_for: Any) -> Any:
    return client_for(platform, request.param, cors_origins=[PAGE])


def test_a_page_of_an_allowed_origin_may_ask_without_a_key(allowing: Any) -> None:
    answer = allowing.send("OPTIONS", CHAT, headers=[("origin", PAGE), *ASKED], key="")
    assert (answer.status, answer.raw) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-allow-headers"] == "authorization,content-type"
    assert answer.headers["vary"] == "origin"


def test_its_requests_are_answered_with_the_headers_that_let_it_read(allowing: Any) -> None:
    for key, status in (("", 401), (allowing.key, 200)):
        answer = allowing.chat(headers=[("origin", PAGE)], key=key)
        assert answer.status == status
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
    stream = allowing.chat(stream=True, headers=[("origin", PAGE)])
    assert stream.headers["access-control-allow-origin"] == PAGE


@pytest.mark.parametrize(
    "origin", ["https://evil.example.com", f"{PAGE}.evil.com", "null", PAGE.upper(), f"{PAGE}:8443"]
)
def test_a_page_of_another_origin_gets_no_header(strict: Any, origin: str) -> None:
    assert strict.send("OPTIONS", CHAT, headers=[("origin", origin), *ASKED], key="").status == 401
    answer = strict.chat(headers=[("origin", origin)])
    assert answer.status == 200
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert answer.headers["vary"] == "origin"


def test_an_options_request_that_is_not_a_preflight_needs_a_key(strict: Any) -> None:
    assert strict.send("OPTIONS", CHAT, headers=[("origin", PAGE)], key="").status == 401
    assert strict.send("OPTIONS", CHAT, headers=ASKED, key="").status == 401


def test_header_names_that_cannot_be_read_are_not_repeated(strict: Any) -> None:
    requested = [("origin", PAGE), ASKED[0], ("access-control-request-headers", "a\x00b")]
    answer = strict.send("OPTIONS", CHAT, headers=requested, key="")
    assert answer.status == 204
    assert "access-control-allow-headers" not in answer.headers


def test_by_default_there_is_no_other_origin(client: Any) -> None:
    assert client.send("OPTIONS", CHAT, headers=[("origin", PAGE), *ASKED], key="").status == 401
    answer = client.chat(headers=[("origin", PAGE)])
    assert {"vary", "access-control-allow-origin"}.isdisjoint(answer.headers)


@pytest.mark.parametrize("make", [asgi_app, Endpoint])
def test_what_is_not_an_origin_is_refused_when_it_is_given(platform: Platform, make: Any) -> None:
    for wrong in ("app.example.com", f"{PAGE}/", f"{PAGE}/path", "https://"):
        with pytest.raises(InvalidInput, match="cors_origins"):
            make(platform, cors_origins=[wrong])
    make(platform, cors_origins=[PAGE])
