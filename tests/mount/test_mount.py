"""The platform inside of other people's applications: each framework, at the root and below a prefix.

Every exchange is checked against the OpenAPI document where it leaves the framework.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import attrs
import httpx
import pytest

from modelyard.asgi import asgi_app
from modelyard.compose import open_platform
from modelyard.http.interface import Interface
from modelyard.http.interfaces import STANDARD
from modelyard.wsgi import wsgi_app
from openapi_check import described

Send = Callable[[str, str, Any, dict[str, str]], httpx.Response]


@attrs.frozen
class Mounted:
    """An application with a platform somewhere below it."""

    name: str
    prefix: str
    send: Send
    platform: Any
    key: str

    def chat(self, **members: Any) -> tuple[int, bytes]:
        body = {"model": "echo", "messages": [{"role": "user", "content": "mounted é"}], **members}
        return self.ask("POST", "/inference/v1/chat/completions", body)

    def ask(self, method: str, path: str, body: Any = None, key: str | None = None) -> tuple[int, bytes]:
        headers = {"authorization": f"Bearer {self.key if key is None else key}"}
        answer = self.send(method, self.prefix + path, body, headers)
        sent, media = answer.request.content, answer.headers["content-type"]
        described(STANDARD).check(method, path, "", sent, answer.status_code, media, answer.content)
        return answer.status_code, answer.content


# ---- asynchronous ------------------------------------------------------------------------------------------------


def through_asgi(app: Any) -> Send:
    """Send by httpx's own ASGI transport."""

    async def main(method: str, path: str, body: Any, headers: dict[str, str]) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
            return await client.request(method, path, json=body, headers=headers)

    return lambda *request: asyncio.run(main(*request))


def plain_asgi(platform: Any, prefix: str) -> Send:
    inner = asgi_app(platform)

    async def outer(scope: Any, receive: Any, send: Any) -> None:
        if prefix and not scope["path"].startswith(prefix + "/"):
            await send({"type": "http.response.start", "status": 299, "headers": []})
            await send({"type": "http.response.body", "body": b"outer"})
            return
        await inner({**scope, "root_path": prefix}, receive, send)

    return through_asgi(outer)


def starlette(platform: Any, prefix: str) -> Send:
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Mount, Route

    outer = Route("/outer", lambda request: PlainTextResponse("outer", 299))
    return through_asgi(Starlette(routes=[outer, Mount(prefix or "/", asgi_app(platform))]))


def fastapi(platform: Any, prefix: str) -> Send:
    from fastapi import FastAPI, Response

    app = FastAPI()

    @app.get("/outer")
    def outer() -> Response:
        return Response("outer", 299)

    app.mount(prefix or "/", asgi_app(platform))
    return through_asgi(app)


# ---- synchronous -------------------------------------------------------------------------------------------------


def through_wsgi(app: Any) -> Send:
    """Send by httpx's own WSGI transport."""

    def send(method: str, path: str, body: Any, headers: dict[str, str]) -> httpx.Response:
        with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://here") as client:
            return client.request(method, path, json=body, headers=headers)

    return send


def flask(platform: Any, prefix: str) -> Send:
    from flask import Flask
    from werkzeug.middleware.dispatcher import DispatcherMiddleware

    app = Flask(__name__)
    app.add_url_rule("/outer", view_func=lambda: ("outer", 299))
    inner = wsgi_app(platform)
    app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {prefix: inner}) if prefix else fallback(app.wsgi_app, inner)  # type: ignore[method-assign]
    return through_wsgi(app)


def fallback(first: Any, second: Any) -> Any:
    """`/outer` to the first application, everything else to the second."""
    return lambda environ, start: (first if environ["PATH_INFO"] == "/outer" else second)(environ, start)


def django(platform: Any, prefix: str) -> Send:
    import django as package
    from django.conf import settings
    from django.core.handlers.wsgi import WSGIHandler
    from django.http import HttpResponse
    from django.urls import path

    if not settings.configured:
        settings.configure(
            SECRET_KEY="x",
            ROOT_URLCONF=(path("outer", lambda request: HttpResponse("outer", status=299)),),
            ALLOWED_HOSTS=["*"],
        )
        package.setup()
    framework, inner = WSGIHandler(), wsgi_app(platform)

    def application(environ: Any, start_response: Any) -> Any:
        called = environ["PATH_INFO"]
        if called == "/outer" or not called.startswith(prefix + "/"):
            return framework(environ, start_response)
        below = {**environ, "SCRIPT_NAME": environ["SCRIPT_NAME"] + prefix, "PATH_INFO": called[len(prefix) :]}
        return inner(below, start_response)

    return through_wsgi(application)


FRAMEWORKS = [plain_asgi, starlette, fastapi, flask, django]


@pytest.fixture(
    scope="module",
    params=[(make, prefix) for make in FRAMEWORKS for prefix in ("", "/ai", "/deep/er")],
    ids=lambda p: f"{p[0].__name__}{p[1]}",
)
def mounted(request: pytest.FixtureRequest) -> Iterator[Mounted]:
    make, prefix = request.param
    with open_platform() as platform:
        yield Mounted(make.__name__, prefix, make(platform, prefix), platform, platform.keys.create("acme").secret)


@pytest.mark.slow
def test_a_chat_is_answered_and_booked(mounted: Mounted) -> None:
    status, raw = mounted.chat()
    assert status == 200
    assert json.loads(raw)["choices"][0]["message"]["content"] == "mounted é"
    assert mounted.platform.usage.total(by=("entity",))[0].entity == "acme"


def test_a_chat_is_streamed(mounted: Mounted) -> None:
    status, raw = mounted.chat(stream=True)
    assert status == 200
    assert raw.startswith(b"data: {")
    assert raw.endswith(b"data: [DONE]\n\n")


def test_the_slashed_path_answers_without_a_redirect(mounted: Mounted) -> None:
    body = {"model": "echo", "messages": [{"role": "user", "content": "x"}]}
    assert mounted.ask("POST", "/v1/chat/completions/", body)[0] == 200


def test_keys_are_required_and_the_catalogue_is_public(mounted: Mounted) -> None:
    assert mounted.ask("GET", "/v1/health", key="wrong")[0] == 401
    assert mounted.ask("GET", "/v1/health")[0] == 200
    assert mounted.ask("GET", "/inference/analysis/partner/models", key="wrong")[0] == 200
    assert mounted.ask("GET", "/v1/nothing")[0] == 404


def test_names_with_slashes_and_odd_paths_keep_their_meaning(mounted: Mounted) -> None:
    mounted.platform.models.create("m", project="p", base_model="tabular-mini", entity="acme", return_existing=True)
    for name in ("acme/p/m", "acme%2Fp%2Fm"):
        status, raw = mounted.ask("GET", f"/v1/models/{name}")
        assert status == 200
        assert json.loads(raw)["id"] == "acme/p/m"
    assert mounted.ask("GET", "/v1/models/%00")[0] == 404


def test_bad_input_is_reported_in_the_platform_s_own_words(mounted: Mounted) -> None:
    status, raw = mounted.chat(n=0, temperature=9)
    assert status == 400
    assert {"n:", "temperature:"} <= set(json.loads(raw)["error"]["message"].split())


@pytest.mark.slow
def test_the_document_says_where_its_paths_begin(mounted: Mounted) -> None:
    shown = json.loads(mounted.ask("GET", "/openapi.json")[1])
    assert shown.get("servers", [{"url": "/"}]) == [{"url": mounted.prefix or "/"}]


def test_the_rest_stays_with_the_framework(mounted: Mounted) -> None:
    if mounted.name != "plain_asgi":
        answer = mounted.send("GET", "/outer", None, {})
        assert (answer.status_code, answer.content) == (299, b"outer")


def test_two_platforms_can_lie_side_by_side() -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    with open_platform() as one, open_platform() as other:
        mounts = [Mount("/one", asgi_app(one)), Mount("/other", asgi_app(other, [Interface.INFERENCE]))]
        send = through_asgi(Starlette(routes=mounts))
        key = {"authorization": f"Bearer {one.keys.create('acme').secret}"}
        assert send("GET", "/one/v1/health", None, key).status_code == 200
        assert send("GET", "/other/inference/v1/models", None, key).status_code == 401
        key = {"authorization": f"Bearer {other.keys.create('acme').secret}"}
        assert send("GET", "/other/inference/v1/models", None, key).status_code == 200
        assert send("GET", "/other/v1/health", None, key).status_code == 404


def test_any_other_carrier_needs_a_dozen_lines() -> None:
    from modelyard.http.endpoint import Endpoint
    from modelyard.http.message import Request

    async def chunks() -> AsyncIterator[bytes]:
        yield b""

    with open_platform() as platform:
        endpoint = Endpoint(platform)
        path = "/inference/analysis/partner/models"
        response = endpoint.handle(Request("GET", path, "", [], iter(())))
        later = asyncio.run(endpoint.ahandle(Request("GET", path, "", [], chunks())))
    assert response.body == later.body
