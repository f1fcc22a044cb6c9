"""Below a prefix, every link of every page leads somewhere: given by hand, by a proxy, and by a mount."""

import asyncio
import re
import socket
import threading
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx
import pytest
from click.testing import CliRunner
from starlette.applications import Starlette
from starlette.routing import Mount

from each import each_case
from modelyard import open_platform
from modelyard.asgi import asgi_app, dashboard_app
from modelyard.cli import main
from modelyard.domain.identity import host
from modelyard.parts.doubles.clients.server import asgi_server
from modelyard.parts.server.forwarded import LOOPBACK, behind_proxy, check_prefix, check_proxies
from nginx_server import nginx_server

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "run-in-production.md"
LINK = re.compile(r'(?:href|src|action)="([^"]*)"')
ROW = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with open_platform(tmp_path_factory.mktemp("forwarded") / "yard.db") as platform:
        model = platform.models.create("m", project="p", base_model="tabular-mini")
        platform.training.sft(model.id, [ROW] * 4).wait()
        platform.models.promote(model.id, 1)
        platform.evaluations.run("e", "echo", [{"prompt": "hi", "expected": "hi"}] * 3)
        yield platform


def location() -> str:
    """The block of nginx's configuration in the docs."""
    return "location " + PAGE.read_text(encoding="utf-8").split("location ")[1].split("```")[0]


def nginx(app: Any) -> Any:
    """Do what the configuration of the docs does: take the prefix off, and send its headers."""
    block = location().removeprefix("location ")
    prefix = block.split(" {")[0]
    assert re.search(r"proxy_pass http://[^/]+/;", block)
    values = {
        "$http_host": "localhost",
        "$request_id": "abc",
        "$scheme": "http",
        "$remote_addr": "203.0.113.7",
        '""': "",
    }
    sent = dict(re.findall(r"proxy_set_header (\S+) (\S+);", block))
    headers = [(name.lower().encode(), values.get(value, value.strip('"')).encode()) for name, value in sent.items()]

    async def proxied(scope: Any, receive: Any, send: Any) -> None:
        if not scope["path"].startswith(prefix):
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b"nginx has no such location"})
            return
        kept = [(name, value) for name, value in scope["headers"] if name not in dict(headers)]
        path = "/" + scope["path"].removeprefix(prefix)
        raw = b"/" + scope["raw_path"].removeprefix(prefix.encode())
        await app({**scope, "path": path, "raw_path": raw, "headers": kept + headers}, receive, send)

    return proxied


def stripped(app: Any) -> Any:
    """A proxy that takes the prefix off, and says nothing."""

    async def proxied(scope: Any, receive: Any, send: Any) -> None:
        assert scope["path"].startswith("/ai/")
        path, raw = scope["path"].removeprefix("/ai"), scope["raw_path"].removeprefix(b"/ai")
        await app({**scope, "path": path, "raw_path": raw}, receive, send)

    return proxied


def whole(platform: Any) -> Any:
    return asgi_app(platform, dashboard=True)


def read_only(platform: Any) -> Any:
    return dashboard_app(platform, reader=host())


def mounted(app: Any, prefix: str) -> Any:
    return Starlette(routes=[Mount(prefix, app=app)])


SITES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "at the root": ("", lambda p: behind_proxy(whole(p), "", LOOPBACK)),
    "root path": ("/ai", lambda p: stripped(behind_proxy(whole(p), "/ai", LOOPBACK))),
    "header": ("/ai", lambda p: nginx(behind_proxy(whole(p), "", LOOPBACK))),
    "mount": ("/ai", lambda p: mounted(whole(p), "/ai")),
    "mount below a header": ("/ai/x", lambda p: nginx(behind_proxy(mounted(whole(p), "/x"), "", LOOPBACK))),
    "dashboard at /board": ("/board", lambda p: mounted(read_only(p), "/board")),
    "slash at the end": ("/ai", lambda p: with_root(whole(p), "/ai/")),
}


def with_root(app: Any, root: str) -> Any:
    async def rooted(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "root_path": root}, receive, send)

    return rooted


async def walk(
    transport: httpx.AsyncBaseTransport, prefix: str, key: str, site: str = "http://localhost"
) -> dict[str, int]:
    """Follow every link from the first page on, and each form's address; return the pages with their statuses."""
    async with httpx.AsyncClient(transport=transport, base_url=site, timeout=60) as client:
        first = await client.get(f"{prefix}/")
        while first.is_redirect:
            first = await client.get(first.headers["location"])
        if "login" in str(first.url):
            form = {"key": key, "to": "/dashboard/"}
            # browsers say only this of themselves on a site without encryption
            entered = await client.post(f"{prefix}/dashboard/login", data=form, headers={"origin": site})
            assert entered.headers["location"] == f"{prefix}/dashboard/"
            assert f"Path={prefix}/dashboard;" in entered.headers["set-cookie"]
        waiting, seen = [f"{prefix}/dashboard/", *([] if "board" in prefix else [f"{prefix}/docs"])], dict[str, int]()
        while waiting:
            path = waiting.pop()
            answer = await client.get(path)
            seen[path] = answer.status_code
            found = [answer.headers["location"]] if answer.is_redirect else []
            if "html" in answer.headers.get("content-type", ""):
                found += [unescape(one) for one in LINK.findall(answer.text) if not one.startswith(("data:", "#"))]
                forms = {unescape(one) for one in re.findall(r'<form[^>]* action="([^"]*)"', answer.text)}
                found = [one for one in found if one not in forms]
                assert all(one.startswith(f"{prefix}/dashboard/") for one in forms), forms
            for one in found:
                target = urlsplit(urljoin(f"{site}{path}", one))
                if target.hostname == "localhost":
                    assert site.endswith(target.netloc), (path, one)
                    assert target.path.startswith(f"{prefix}/"), (path, one)
                    link = target.path + (f"?{target.query}" if target.query else "")
                    if link not in seen and link not in waiting and len(seen) + len(waiting) < 120:
                        waiting.append(link)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("site", SITES)
def test_every_link_of_every_page_leads_to_a_page(platform: Any, site: str) -> None:
    prefix, make = SITES[site]
    transport = httpx.ASGITransport(make(platform), client=("127.0.0.1", 1234))
    check_pages(asyncio.run(walk(transport, prefix, platform.keys.create("ops", host=True).secret)))


def check_pages(seen: dict[str, int]) -> None:
    assert {path: status for path, status in seen.items() if status >= 400} == {}
    assert len(seen) > 20
    assert any(path.endswith("style.css") for path in seen)


@pytest.mark.servers
def test_every_link_leads_to_a_page_behind_the_nginx_of_the_docs(platform: Any, tmp_path: Path) -> None:
    key = platform.keys.create("ops", host=True).secret
    with (
        asgi_server(behind_proxy(whole(platform), "", LOOPBACK), proxy_headers=False) as server,
        nginx_server(tmp_path, location(), server.url) as site,
    ):
        check_pages(asyncio.run(walk(httpx.AsyncHTTPTransport(), "/ai", key, site)))
        answer = httpx.get(f"{site}/ai/livez", headers={"x-request-id": "of-a-client"})
        assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])


@pytest.mark.servers
def test_the_nginx_of_the_docs_passes_a_stream_on_as_it_comes(tmp_path: Path) -> None:
    heard = threading.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        """End only when somebody has received the beginning."""
        if scope["type"] != "http":
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope["path"].encode(), "more_body": True})
        await asyncio.to_thread(heard.wait, 60)
        await send({"type": "http.response.body", "body": b" and the end"})

    with (
        asgi_server(behind_proxy(application, "", LOOPBACK), proxy_headers=False) as server,
        nginx_server(tmp_path, location(), server.url) as site,
        httpx.stream("GET", f"{site}/ai/v1/x", timeout=20) as answer,
    ):
        pieces = answer.iter_raw()
        assert next(pieces) == b"/ai/v1/x"
        heard.set()
        assert b"".join(pieces) == b" and the end"


PIECE, MOST = b"x" * 2**20, 128
"""More than the buffers of three sockets hold, and less than nginx keeps in files."""


@pytest.mark.servers
def test_the_nginx_of_the_docs_holds_back_a_server_whose_client_does_not_read(tmp_path: Path) -> None:
    sent, went_on = 0, threading.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        nonlocal sent
        if scope["type"] != "http":
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while sent < MOST:
            sent += 1
            await send({"type": "http.response.body", "body": PIECE, "more_body": True})
            went_on.set()
        await send({"type": "http.response.body", "body": b""})

    with (
        asgi_server(behind_proxy(application, "", LOOPBACK), proxy_headers=False) as server,
        nginx_server(tmp_path, location(), server.url) as site,
        socket.create_connection(("127.0.0.1", int(site.rpartition(":")[2])), 60) as client,
    ):
        client.sendall(b"GET /ai/v1/x HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(8) == b"HTTP/1.1"
        while went_on.wait(1):
            went_on.clear()
        assert 0 < sent < MOST


@each_case(
    ("client", "sent", "prefix"),
    [
        ("127.0.0.1", "/ai", "/ai"),
        ("::1", "/ai/", "/ai"),
        ("10.1.2.3", "/ai", "/ai"),
        ("192.0.2.1", "/ai", "/root"),
        ("not an address", "/ai", "/root"),
        ("127.0.0.1", "//evil.example", "/root"),
        ("127.0.0.1", "https://evil.example", "/root"),
        ("127.0.0.1", "/a/../b", "/root"),
        ("127.0.0.1", "/a\r\nb: c", "/root"),
        ("127.0.0.1", "/" + "a" * 300, "/root"),
        ("127.0.0.1", "", ""),
    ],
)
def test_the_prefix_of_a_trusted_proxy_is_believed(client: str, sent: str, prefix: str) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)

    scope = {"type": "http", "path": "/é", "raw_path": b"/%C3%A9", "client": (client, 1), "scheme": "http"}
    scope["headers"] = [(b"x-forwarded-prefix", sent.encode())]
    asyncio.run(behind_proxy(app, "/root", (*LOOPBACK, "10.0.0.0/8"))(scope, None, None))  # type: ignore[arg-type]
    assert (seen[0].get("root_path", ""), seen[0]["path"]) == (prefix, f"{prefix}/é")
    assert seen[0]["raw_path"] == prefix.encode() + b"/%C3%A9"


@each_case("given", ["ai", "//ai", "/a b", "/a?b", "/..", "http://a"])
def test_what_is_no_prefix_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="not a path"):
        check_prefix(given)
    refused = CliRunner().invoke(main, ["serve", "--root-path", given])
    assert (refused.exit_code, "is not a path such as /ai" in refused.output) == (2, True)


def test_what_is_no_address_of_a_proxy_is_refused() -> None:
    assert check_proxies(["10.0.0.1", "10.0.0.0/8", "::1"]) == ("10.0.0.1", "10.0.0.0/8", "::1")
    refused = CliRunner().invoke(main, ["serve", "--proxy", "everybody"])
    assert (refused.exit_code, "everybody" in refused.output) == (2, True)
