"""The page of a run that steers it."""

import re
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest

from modelyard import Platform, open_platform
from modelyard.http.message import Request, Response
from modelyard.parts.dashboard.app import Dashboard
from modelyard.parts.dashboard.exchange import COOKIE
from steered_runs import finish, submitted, whole


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform(entity="acme") as platform:
        yield platform


def sent(dashboard: Dashboard, method: str, path: str, cookie: str, **form: str) -> Response:
    headers = [("host", "yard.example"), ("cookie", f"{COOKIE}={cookie}")]
    return dashboard.handle(Request(method, f"/dashboard/{path}", "", headers, iter([urlencode(form).encode()])))


def test_a_run_is_paused_limited_and_resumed_by_buttons(platform: Platform) -> None:
    wrong = [{"prompt": "say", "expected": "say"}, {}]
    run, dashboard = submitted(platform, wrong), Dashboard(platform)
    login = sent(dashboard, "POST", "login", "", key=platform.keys.create("acme").secret)
    cookie = next(value for name, value in login.headers if name == "set-cookie").split(";")[0].split("=", 1)[1]

    def page(path: str) -> str:
        body = sent(dashboard, "GET", path, cookie).body
        assert isinstance(body, bytes)
        return body.decode()

    assert f"runs/{run}/steering" in page(f"runs/{run}")
    first = page(f"runs/{run}/steering")
    assert "Nothing was asked of this run." in first
    token = re.search(r'name="token" value="([0-9a-f]+)"', first)
    assert token is not None
    for form in ({"action": "pause"}, {"action": "limits", "concurrency": "3"}):
        assert sent(dashboard, "POST", f"runs/{run}/steering", cookie, token=token[1], **form).status == 303
    shown = page(f"runs/{run}/steering")
    assert "paused" in shown
    assert "concurrency 8 -&gt; 3" in shown
    assert sent(dashboard, "POST", f"runs/{run}/steering", cookie, token=token[1], action="odd").status == 422
    assert sent(dashboard, "POST", f"runs/{run}/steering", cookie, token=token[1], action="resume").status == 303
    finish(platform)
    assert sent(dashboard, "POST", f"runs/{run}/steering", cookie, token=token[1], action="requeue").status == 303
    finish(platform)
    whole(platform, run, 2)
