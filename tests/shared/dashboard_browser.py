"""A platform that is served with its dashboard, and a browser that logs in to it."""

import os
import shutil
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from dashboard_pages import fill
from modelyard import Platform, Settings, open_platform
from modelyard.asgi import asgi_app
from modelyard.parts.doubles.clients.server import asgi_server

PATIENCE = 60_000
"""Milliseconds to wait for what a page does: many, since a machine may be busy."""


@attrs.frozen
class Yard:
    """A served platform, its address, and a key for it."""

    platform: Platform
    url: str
    key: str

    def page(self, path: str = "") -> str:
        """The address of a page."""
        return f"{self.url}/dashboard/{path}"


@pytest.fixture(scope="module")
def yard() -> Iterator[Yard]:
    with open_platform(settings=Settings(run_idle=0)) as platform:
        fill(platform)
        with asgi_server(asgi_app(platform, dashboard=True), log_level="warning") as server:
            yield Yard(platform, server.url, platform.keys.create("acme", name="ann").secret)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    found = os.environ.get("MODELYARD_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    assert found, "there is no Chromium; install the package `chromium`, or name one in MODELYARD_CHROMIUM"
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"], timeout=PATIENCE)
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Browser, yard: Yard) -> Iterator[Page]:
    """A page of a browser that is logged in. Whatever its console complains of fails the test."""
    complaints: list[str] = []
    context = new_context(chromium)
    page = context.new_page()
    page.on(
        "console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    log_in(page, yard, yard.key)
    yield page
    context.close()
    assert complaints == []


def new_context(chromium: Browser, **options: Any) -> BrowserContext:
    """A session of a browser that waits for as long as a busy machine takes."""
    context = chromium.new_context(**options)
    context.set_default_timeout(PATIENCE)
    return context


def log_in(page: Page, yard: Yard, key: str) -> None:
    """Log in with a key."""
    page.goto(yard.page())
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(yard.page())
