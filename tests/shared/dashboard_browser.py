"""A platform that is served with its dashboard, and a browser that logs in to it."""

import os
import shutil
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from driven_runs import shown_run
from modelyard import Platform, Settings, open_platform
from modelyard.asgi import asgi_app
from modelyard.parts.doubles.clients.server import asgi_server

HOSTILE = "<script>alert('x')</script> \u05e9\u05dc\u05d5\u05dd \u202e" + "long" * 40
LONG = "word " * 2000
"""10,000 characters."""
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
        shown_run(platform, "acme", HOSTILE)
        learner = platform.models.create("learner", project="loops", base_model="tabular-mini", entity="acme")
        tasks = [{"prompt": HOSTILE, "expected": "yes"}, {"prompt": LONG[:500], "expected": HOSTILE}]
        judge = {"type": "llm_judge", "model": "echo", "prompt": "1 {output}", "scale": "number"}
        options: Any = {"held_out": tasks, "rounds": 2, "samples": 2, "max_tokens": 8}
        platform.training.loop(learner, tasks, judge, **options).wait()
        model = platform.models.create("desk", project="bots", base_model="tabular-mini", entity="acme")
        rows = [{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello there"}]}] * 12
        for rate in (1e-4, 2e-4):
            platform.training.sft(model, rows, learning_rate=rate, batch_size=1).wait()
        platform.models.promote(model, 1)
        platform.models.promote(model, 2)
        questions = [{"prompt": HOSTILE, "expected": HOSTILE}, {"prompt": LONG, "expected": LONG}]
        questions += [{"prompt": f"say {at}", "expected": f"say {at}" if at % 3 else "no"} for at in range(30)]
        for name in ("echo", "tabular-mini"):
            platform.evaluations.run("quiz", name, questions, project="bots", entity="acme")
        platform.usage.set_budget("5", entity="acme")
        traces, place = platform.compat.traces, {"project": "bots", "entity": "acme"}
        asked = {"model": "echo", "messages": [{"role": "user", "content": HOSTILE}], "long": LONG}
        outer = traces.calls.start("answer", asked, **place)  # type: ignore[arg-type]
        for at in range(4):
            inner = traces.calls.start(HOSTILE if at else "search", asked, parent=outer)
            traces.calls.end(inner.id, LONG, exception=LONG if at == 3 else None, **place)  # type: ignore[arg-type]
        traces.calls.end(outer.id, {HOSTILE: LONG}, summary={"usage": {"echo": {"total_tokens": 7}}}, **place)  # type: ignore[arg-type]
        traces.feedback.add(outer.ref, "rating", {"said": HOSTILE}, creator="ann")
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
