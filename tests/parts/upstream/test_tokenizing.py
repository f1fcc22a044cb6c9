"""Tokens of models on another server: asked of its own routes, on either base path."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from canned_answers import answering
from modelyard import Platform, Pricing, UpstreamBackend, offer, open_platform
from modelyard.asgi import asgi_app
from modelyard.errors import BackendError, InvalidInput, ModelyardError, UnsupportedParameter
from modelyard.http.interface import Interface
from modelyard.parts.doubles.clients.server import asgi_server
from upstream_asking import http

MODEL = offer("tabular-mini", context_length=1000, pricing=Pricing())


def behind(url: str, secret: str) -> UpstreamBackend:
    return UpstreamBackend(url, secret, models=[MODEL])


@pytest.fixture(scope="module")
def inner() -> Iterator[Platform]:
    with open_platform() as platform:
        yield platform


@pytest.fixture(scope="module")
def server(inner: Platform) -> Iterator[Any]:
    with asgi_server(asgi_app(inner, [Interface.COMPLETIONS]), log_level="warning") as server:
        yield server


@pytest.mark.parametrize("base", ["/v1", "/inference/v1"])
def test_tokens_are_those_of_the_server_and_come_back_as_its_text(inner: Platform, server: Any, base: str) -> None:
    secret = inner.keys.create("acme").secret
    with behind(server.url + base, secret) as backend, open_platform(backend=backend) as outer:
        for asked in ({"prompt": "one two"}, {"messages": [{"role": "user", "content": "one two"}]}):
            options: Any = {"model": "tabular-mini", **asked}
            assert outer.compat.completions.tokenize(**options) == inner.compat.completions.tokenize(**options)
        ids = inner.compat.completions.tokenize(model="tabular-mini", prompt="one two")
        assert outer.compat.completions.detokenize(model="tabular-mini", tokens=ids) == "one two"
        with pytest.raises(InvalidInput, match="tokens"):
            outer.compat.completions.detokenize(model="tabular-mini", tokens=[10**9])
        with pytest.raises(UnsupportedParameter, match="does not say what each token stands for"):
            outer.compat.completions._token_bytes("tabular-mini", ids)


def test_a_server_without_the_routes_or_that_refuses_the_key_is_reported(inner: Platform, server: Any) -> None:
    with asgi_server(asgi_app(inner, [Interface.INFERENCE]), log_level="warning") as without:
        backend = behind(f"{without.url}/v1", "k")
        with backend, open_platform(backend=backend) as outer, pytest.raises(UnsupportedParameter, match="/tokenize"):
            outer.compat.completions.tokenize(model="tabular-mini", prompt="a")
    for url, why in ((f"{server.url}/v1", "401"), ("http://127.0.0.1:9/v1", "did not answer")):
        with behind(url, "wrong") as backend, open_platform(backend=backend) as outer:
            with pytest.raises(BackendError, match=why):
                outer.compat.completions.tokenize(model="tabular-mini", prompt="a")


# ---- odd answers


def answered(body: Any, detokenized: bool = False) -> Any:
    """What a platform makes of a server's answer to `/tokenize`, or to `/detokenize`: a value, or the error."""
    raw = body if isinstance(body, bytes) else http(json.dumps(body).encode())
    with answering(raw) as url, behind(url, "k") as backend, open_platform(backend=backend) as outer:
        asked = outer.compat.completions
        try:
            if detokenized:
                return asked.detokenize(model="tabular-mini", tokens=[1])
            return list(asked.tokenize(model="tabular-mini", prompt="a"))
        except ModelyardError as error:
            return error


@pytest.mark.parametrize(
    "body",
    [
        {"tokens": [1, 2], "count": 2, "seed": 2**70},
        {"tokens": ["1", 2.0]},
        {"tokens": [{"id": 1, "piece": "a"}, {"id": 2, "piece": [195]}]},
        {"token_ids": [1, 2]},
        {"code": 0, "data": {"tokens": [1, 2]}},
        http(b'{"tokens": [1, 2], "x": NaN, "x": 1}'),
        http(b'\xef\xbb\xbf{"tokens": [1, 2]}\n', status="201 Created"),
    ],
    ids=repr,
)
def test_ids_are_read_in_any_form(body: Any) -> None:
    assert answered(body) == [1, 2]


@pytest.mark.parametrize(
    "body", [{"prompt": "é"}, {"text": "é"}, {"content": "é"}, {"data": {"prompt": "é"}}], ids=repr
)
def test_so_is_text(body: Any) -> None:
    assert answered(body, detokenized=True) == "é"


def test_nothing_is_an_answer_and_half_a_character_is_a_mark() -> None:
    assert (answered({"tokens": []}), answered({"prompt": ""}, True)) == ([], "")
    assert answered({"prompt": "a\ud83d"}, detokenized=True) == "a\ufffd"


@pytest.mark.parametrize(
    "body", [{}, [], [1], {"tokens": None}, {"tokens": [-1]}, {"tokens": "1"}, {"prompt": 5}, http(b"x")]
)
@pytest.mark.parametrize("detokenized", [False, True])
def test_an_answer_that_cannot_be_used_is_no_fault_of_the_caller(body: Any, detokenized: bool) -> None:
    error = answered(body, detokenized)
    assert isinstance(error, BackendError)
    assert "is malformed" in str(error)
