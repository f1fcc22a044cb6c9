"""Tokens of models on another server: asked of its own routes, on either base path."""

from collections.abc import Iterator
from typing import Any

import pytest

from modelyard import Platform, Pricing, UpstreamBackend, offer, open_platform
from modelyard.asgi import asgi_app
from modelyard.errors import BackendError, InvalidInput, UnsupportedParameter
from modelyard.http.interface import Interface
from modelyard.parts.doubles.clients.server import asgi_server

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
