"""The dashboard: who may see and change what, and that every page answers whatever is stored."""

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Iterator
from html import unescape
from io import BytesIO
from typing import Any
from urllib.parse import parse_qsl, urlencode

import attrs
import pytest

from driven_runs import shown_run
from modelyard import Settings
from modelyard.compose import open_platform
from modelyard.domain.catalogue import Pricing
from modelyard.domain.evaluation.aggregate import ReportOptions
from modelyard.domain.evaluation.comparison import Comparison
from modelyard.domain.identity import Principal, Scope, host
from modelyard.errors import StoreBusy, Unauthenticated
from modelyard.http.message import Request, Response
from modelyard.part import DashboardPage, Part
from modelyard.parts.dashboard import view as views
from modelyard.parts.dashboard.app import Dashboard
from modelyard.parts.dashboard.exchange import COOKIE
from modelyard.parts.dashboard.pages import rows as row_pages
from modelyard.parts.dashboard.view import HtmlPage, Kept
from modelyard.parts.reports.comparison_page import _uncompared
from modelyard.parts.reports.html import Html, html, table
from modelyard.parts.standard import STANDARD
from modelyard.platform.evaluations.result import Rows
from modelyard.platform.evaluations.service import Evaluations
from modelyard.platform.platform import Platform
from modelyard.testing.clock import ManualClock

HOSTILE = "<script>alert('x')</script>\"&\u202e" + "n" * 60
PAGES = ("", "jobs", "models", "runs", "tinker", "traces", "usage", "keys", "catalogue", "catalogue/echo", "api")


@attrs.define
class Browser:
    """A browser that keeps the cookie of the session."""

    dashboard: Dashboard
    cookie: str = ""
    host: str = "yard.example"

    def get(self, path: str, **query: str) -> tuple[int, str]:
        response = self.send("GET", path, urlencode(query))
        return response.status, text_of(response)

    def post(self, path: str, **form: str) -> Response:
        return self.send("POST", path, body=urlencode(form).encode())

    def send(self, method: str, path: str, query: str = "", body: bytes = b"", **headers: str) -> Response:
        sent = [("host", self.host), *headers.items()]
        if self.cookie:
            sent.append(("cookie", f"other=1; {COOKIE}={self.cookie}"))
        response = self.dashboard.handle(Request(method, f"/dashboard/{path}", query, sent, iter([body])))
        for name, value in response.headers:
            if name == "set-cookie":
                self.cookie = value.split(";")[0].split("=", 1)[1]
        return response

    def log_in(self, key: str) -> Response:
        return self.post("login", key=key)

    def token(self, path: str = "keys") -> str:
        """The token that the forms of a page carry."""
        found = re.search(r'name="token" value="([0-9a-f]+)"', self.get(path)[1])
        assert found is not None
        return found[1]


def text_of(response: Response) -> str:
    body: Any = response.body
    return (body if isinstance(body, bytes) else b"".join(body)).decode()


def header(response: Response, name: str) -> str:
    return dict(response.headers)[name]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    with open_platform(settings=Settings(run_idle=0)) as platform:
        model = platform.models.create("helpdesk", project="bots", base_model="tabular-mini", entity="acme")
        rows = [{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": HOSTILE}]}] * 3
        platform.training.sft(model, rows, learning_rate=1e-4, batch_size=1).wait()
        platform.models.promote(model, 1)
        questions = [{"prompt": HOSTILE, "expected": HOSTILE}, {"prompt": "no", "expected": "yes"}]
        for name in ("echo", "tabular-mini"):
            platform.evaluations.run("spelling", name, questions, project="bots", entity="acme")
        platform.usage.set_budget("5", entity="acme")
        call = platform.compat.traces.calls.start(HOSTILE, {HOSTILE: [HOSTILE]}, project="bots", entity="acme")
        platform.compat.traces.calls.end(call.id, HOSTILE, exception=HOSTILE, project="bots", entity="acme")
        platform.compat.traces.feedback.add(call.ref, "rating", {"said": HOSTILE}, creator="ann")
        shown_run(platform, "acme", HOSTILE)
        yield platform


@pytest.fixture
def dashboard(platform: Platform) -> Dashboard:
    return Dashboard(platform)


@pytest.fixture
def browser(platform: Platform, dashboard: Dashboard) -> Browser:
    browser = Browser(dashboard)
    browser.log_in(platform.keys.create("acme", name=HOSTILE.replace("\u202e", "")).secret)
    return browser


def paths_of(browser: Browser) -> list[str]:
    """Every page that the pages link to, and those themselves."""
    found = list(PAGES)
    for path in PAGES:
        links = re.findall(r'href="/dashboard/([^"#]+)"', browser.get(path)[1])
        found += [unescape(link) for link in links if not link.startswith("static")]
    return list(dict.fromkeys(found))


# ---- who may look


def test_without_a_session_every_page_leads_to_the_login(dashboard: Dashboard) -> None:
    for path in (*PAGES, "jobs/x", "nowhere"):
        response = Browser(dashboard).send("GET", path)
        assert response.status == 303
        assert header(response, "location").startswith("/dashboard/login?to=")


def test_the_login_page_refuses_what_is_not_a_key_and_repeats_none_of_it(dashboard: Dashboard) -> None:
    for wrong in ("", "my_wrong_" + "0" * 43, "x" * 10_000):
        response = Browser(dashboard).log_in(wrong)
        assert response.status == 401
        assert not wrong or wrong not in text_of(response)


def test_the_cookie_is_kept_from_scripts_and_other_sites(platform: Platform, dashboard: Dashboard) -> None:
    secret = platform.keys.create("acme").secret
    cookie = header(Browser(dashboard).log_in(secret), "set-cookie")
    assert all(part in cookie for part in ("HttpOnly", "SameSite=Lax", "Path=/dashboard", "Max-Age=43200"))
    assert "Secure" not in cookie
    assert secret not in cookie
    body = iter([urlencode({"key": secret}).encode()])
    safe = dashboard.handle(Request("POST", "/dashboard/login", "", [], body, "https", "/yard"))
    assert "Secure" in header(safe, "set-cookie")
    assert "Path=/yard/dashboard" in header(safe, "set-cookie")


def test_after_the_login_one_is_where_one_wanted_to_be_but_never_elsewhere(
    platform: Platform, dashboard: Dashboard
) -> None:
    key = platform.keys.create("acme").secret
    assert header(Browser(dashboard).post("login", key=key, to="/dashboard/jobs"), "location") == "/dashboard/jobs"
    for elsewhere in (
        *("https://evil.example", "//evil.example/dashboard/", "/v1/models", "", "/dashboard", "/dashboard/a b"),
        *("/dashboard/a\r\nSet-Cookie: a=b", "/dashboard/\u20ac", "/dashboard/\x7f"),
        *("/dashboard/../v1/models", "/dashboard/%2e%2e/v1/models", "/dashboard/\0", "\\\\evil.example/dashboard/"),
    ):
        assert header(Browser(dashboard).post("login", key=key, to=elsewhere), "location") == "/dashboard/"


def test_a_page_of_another_site_cannot_log_anyone_in(platform: Platform, dashboard: Dashboard) -> None:
    body = urlencode({"key": platform.keys.create("acme").secret}).encode()
    browser = Browser(dashboard)
    assert browser.send("POST", "login", body=body, **{"sec-fetch-site": "cross-site"}).status == 403
    assert not browser.cookie


ELSEWHERE = (
    "https://evil.example",
    "null",
    "http://yard.example.evil.example",
    "http://evil.example/yard.example",
    "x",
)


@pytest.mark.parametrize("name", ["origin", "referer"])
def test_a_browser_that_tells_only_its_address_is_logged_in_from_the_dashboards_own_page(
    platform: Platform, dashboard: Dashboard, name: str
) -> None:
    body = urlencode({"key": platform.keys.create("acme").secret}).encode()
    for page in ELSEWHERE:
        browser = Browser(dashboard)
        assert browser.send("POST", "login", body=body, **{name: page}).status == 403
        assert not browser.cookie
    for page in ("http://yard.example", "https://yard.example/dashboard/login?to=x"):
        assert Browser(dashboard).send("POST", "login", body=body, **{name: page}).status == 303
    proxied = {"x-forwarded-host": "yard.public.example", name: "https://yard.public.example/dashboard/login"}
    assert Browser(dashboard).send("POST", "login", body=body, **proxied).status == 303


MISSING = ("models/nosuch/1/x", "models/{model}/1/nosuch", "models/{model}/9/weights", "models/{foreign}/1/{file}")


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("path", MISSING)
def test_a_file_that_is_not_there_or_not_theirs_is_a_page_before_the_first_byte(
    platform: Platform, dashboard: Dashboard, browser: Browser, path: str, asynchronous: bool
) -> None:
    (model,) = [one for one in platform.models.list() if one.name == "helpdesk"]
    name = next(iter(platform.models.checkpoint(model, 1).files))
    if "foreign" in path:
        browser = Browser(dashboard)
        browser.log_in(platform.keys.create("other").secret)
    path = path.format(model=model.id, foreign=model.id, file=name)
    if asynchronous:
        sent = [("host", browser.host), ("cookie", f"{COOKIE}={browser.cookie}")]

        async def nothing() -> AsyncIterator[bytes]:
            yield b""

        request = Request("GET", f"/dashboard/{path}", "", sent, nothing())
        response = asyncio.run(dashboard.ahandle(request))
    else:
        response = browser.send("GET", path)
    assert (response.status, type(response.body)) == (404, bytes)


def test_a_file_is_sent_whole(platform: Platform, browser: Browser) -> None:
    (model,) = [one for one in platform.models.list() if one.name == "helpdesk"]
    for name in platform.models.checkpoint(model, 1).files:
        response = browser.send("GET", f"models/{model.id}/1/{name}")
        with platform.models.open_file(model, 1, name) as file:
            assert b"".join(response.body) == file.read()


def test_a_session_ends_with_its_key_with_its_time_and_at_the_log_out(clock: ManualClock) -> None:
    with open_platform(clock=clock) as platform:
        dashboard, keys = Dashboard(platform), [platform.keys.create("acme") for _ in range(3)]
        revoked, expired, left = (Browser(dashboard) for _ in keys)
        for browser, key in zip((revoked, expired, left), keys, strict=True):
            browser.log_in(key.secret)
            assert browser.get("")[0] == 200
        platform.keys.revoke(keys[0].key.id)
        assert revoked.get("")[0] == 303
        stale = left.cookie
        assert header(left.post("logout", token=left.token()), "location") == "/dashboard/login"
        left.cookie = stale
        assert left.get("")[0] == 303
        clock.advance(12 * 3600 - 1)
        assert expired.get("")[0] == 200
        clock.advance(1)
        assert expired.get("")[0] == 303


def test_a_session_of_your_own_authenticator_is_short(clock: ManualClock) -> None:
    class Own:
        blocking, longest = False, 10

        def authenticate(self, secret: str) -> Principal:
            if secret != "open":
                raise Unauthenticated("no")
            return Principal("ann", "acme", Scope("acme", frozenset({"bots"})), "ann")

    with open_platform(clock=clock) as platform:
        browser = Browser(Dashboard(platform, Own()))
        assert browser.log_in("shut").status == 401
        browser.log_in("open")
        assert "ann" in browser.get("")[1]
        clock.advance(15 * 60)
        assert browser.get("")[0] == 303


@pytest.mark.slow
def test_the_store_holds_neither_the_token_nor_the_key(tmp_path: Any) -> None:
    with open_platform(tmp_path / "yard.db") as platform:
        key, browser = platform.keys.create("acme"), Browser(Dashboard(platform))
        browser.log_in(key.secret)
        token = browser.cookie
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    assert len(token) == 43
    assert token.encode() not in stored
    assert key.secret.encode() not in stored


# ---- what is shown


def test_every_page_answers_and_escapes_what_is_stored(browser: Browser) -> None:
    paths = paths_of(browser)
    assert {path.split("/")[0] for path in paths} >= {"jobs", "models", "runs", "traces", "catalogue"}
    assert len(paths) > 15
    for path in paths:
        path, _, query = path.partition("?")
        response = browser.send("GET", path, query)
        text = text_of(response)
        assert response.status == 200, path
        if header(response, "content-type").startswith("text/html"):
            assert "<script>alert" not in text, path
            assert "default-src 'none'" in header(response, "content-security-policy")
            assert 'style="' not in text, path  # the policy would drop it


def test_rows_are_filtered_and_compared(browser: Browser, platform: Platform) -> None:
    echo, mini = platform.evaluations.runs.list(project="bots", entity="acme")
    assert browser.get(f"runs/{mini.id}/rows")[1].count("<article") == 2
    assert browser.get(f"runs/{echo.id}/rows", show="failed")[1].count("<article") == 1
    assert browser.get(f"runs/{echo.id}/rows", q="alert")[1].count("<article") == 1
    changed = browser.get(f"runs/{mini.id}/rows", show="changed", baseline=echo.id)[1]
    assert "<del>" in changed
    assert "<article" in changed


def test_a_conversation_in_a_row_is_shown_in_turns() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    asked = [
        {"role": "user", "content": "Where <is> it?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    rows = [{"messages": [*asked, {"role": "tool", "tool_call_id": "a", "content": "there"}], "parts": [{"role": 5}]}]
    with open_platform() as platform:
        run = platform.evaluations.run("turns", lambda row: "x", rows, lambda output, row: 1)
        page = Browser(Dashboard(platform, reader=host()), host="127.0.0.1").get(f"runs/{run.run.id}/rows")[1]
    assert "<pre><b>user</b>\nWhere &lt;is&gt; it?</pre><pre><b>assistant</b>" in page
    assert "look" in page
    assert "<pre>[{&quot;role&quot;: 5}]</pre>" in page, "what is no turn stays as it is"


def test_the_rows_of_a_baseline_are_looked_up_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = Rows.__iter__
    monkeypatch.setattr(Rows, "__iter__", lambda self: read.append(self._run.id) or original(self))
    asked = [{"prompt": f"say {at}", "expected": f"say {at}"} for at in range(4)]
    other_order = [*asked[:1:-1], {"prompt": "new", "expected": ""}, *asked[:2]]
    with open_platform() as platform:
        before = platform.evaluations.run("order", lambda row: "say 0", asked, "exact_match").run
        after = platform.evaluations.run("order", "echo", other_order, "exact_match").run
        browser = Browser(Dashboard(platform))
        browser.log_in(platform.keys.create(before.entity).secret)
        page = browser.get(f"runs/{after.id}/rows", show="changed", baseline=before.id)[1]
    assert re.findall(">Row ([0-9]+)", page) == ["0", "1", "4"]
    assert set(read) == {after.id}


def test_what_has_nothing_to_show_yet_is_not_in_the_navigation() -> None:
    def linked(dashboard: Dashboard, path: str = "") -> set[str]:
        page = Browser(dashboard, host="127.0.0.1").get(path)[1]
        return set(re.findall(r"<a [^>]*>([A-Z][a-z]+)</a>", page[page.index("<nav") : page.index("</nav>")]))

    with open_platform() as empty:
        dashboard = Dashboard(empty, reader=host())
        links = linked(dashboard)
        assert {"Home", "Jobs", "Traces"} <= links
        assert not links & {"Tinker", "Sweeps", "Compare", "Webhooks"}
        assert "Tinker" in linked(dashboard, "tinker"), "where one is"


def test_an_evaluation_among_the_jobs_says_what_is_evaluated(browser: Browser, platform: Platform) -> None:
    run = next(iter(platform.evaluations.runs.list(project="bots", entity="acme")))
    page = browser.get("jobs")[1]
    assert re.search(rf'<a [^>]*href="[^"]*runs/{run.id}"[^>]*>[^<]*<small>', page)


def test_what_a_key_may_not_see_is_absent(platform: Platform, dashboard: Dashboard, browser: Browser) -> None:
    other = Browser(dashboard)
    other.log_in(platform.keys.create("rival").secret)
    for path in ("", "jobs", "models", "runs", "usage", "keys"):
        assert "helpdesk" not in other.get(path)[1], path
    theirs = [path for path in paths_of(browser) if re.search("[0-9a-f]{8}-", path)]
    assert len(theirs) > 5
    for path in theirs:
        assert other.send("GET", *path.split("?")).status == 404, path


def test_a_key_of_one_project_sees_that_project_only(platform: Platform, dashboard: Dashboard) -> None:
    narrow = Browser(dashboard)
    narrow.log_in(platform.keys.create("acme", ["else"]).secret)
    for path in ("jobs", "models", "runs", "traces"):
        assert "helpdesk" not in narrow.get(path)[1]
        assert "spelling" not in narrow.get(path)[1]


@pytest.mark.parametrize("path", ["nowhere", "jobs/x", "models/x", "runs/x", "runs/x/rows", "compare", "catalogue/x"])
def test_what_does_not_exist_is_a_page_that_says_so(browser: Browser, path: str) -> None:
    status, text = browser.get(path)
    assert status in (404, 422)
    assert "This did not work" in text
    assert "Log out" in text, "the reader is still logged in"


def test_who_is_not_logged_in_is_offered_no_page(platform: Platform, dashboard: Dashboard) -> None:
    stranger = Browser(dashboard)
    assert "<nav" not in stranger.get("login")[1]
    assert "API key</label>" in stranger.get("login")[1]
    assert "read-only" not in stranger.get("login")[1]
    refused = text_of(stranger.log_in("my_wrong"))
    assert "<nav" not in refused
    assert ">This API key is not valid" in refused
    stranger.log_in(platform.keys.create("acme").secret)
    assert "<nav" in stranger.get("")[1]
    refused = text_of(stranger.post("keys", token="other", name="x"))
    assert "<p>This form is not of your session" in refused
    assert "<p>status: must be" in stranger.get("traces", status="x")[1], "the name of a field stays as it is"


def test_a_dashboard_alone_has_nothing_elsewhere(dashboard: Dashboard, browser: Browser) -> None:
    cookie = [("cookie", f"{COOKIE}={browser.cookie}")]
    for path, status in (
        ("/v1/jobs", 404),
        ("/x", 404),
        ("", 303),
        ("/", 303),
        ("/dashboard", 303),
        ("/dashboard/", 200),
    ):
        assert dashboard.handle(Request("GET", path, "", cookie, iter(()))).status == status, path


# ---- what is changed


def test_keys_are_made_shown_once_and_revoked(browser: Browser, platform: Platform) -> None:
    form = {"name": "new one", "projects": "bots, sales", "days": "3", "requests_per_minute": "60"}
    page = text_of(browser.post("keys", token=browser.token(), **form))
    found = re.search(r"my_\w{8}_\w{43}", page)
    assert found is not None
    principal = platform.keys.authenticate(found[0])
    assert (principal.scope.projects, principal.limits.requests_per_minute) == (frozenset({"bots", "sales"}), 60)
    assert found[0] not in browser.get("keys")[1]
    browser.post(f"keys/{principal.key_id}/revoke", token=browser.token())
    with pytest.raises(Unauthenticated):
        platform.keys.authenticate(found[0])


def test_an_alias_is_moved_and_moved_back(browser: Browser, platform: Platform) -> None:
    (model,) = platform.models.list(entity="acme", project="bots")
    path = f"models/{model.id}"
    assert browser.post(f"{path}/promote", token=browser.token(), alias="best", step="0").status == 303
    browser.post(f"{path}/promote", token=browser.token(), alias="best", step="1")
    assert {one.name: one.step for one in platform.models.aliases(model)}["best"] == 1
    browser.post(f"{path}/rollback", token=browser.token(), alias="best")
    assert {one.name: one.step for one in platform.models.aliases(model)}["best"] == 0
    assert browser.post(f"{path}/promote", token=browser.token(), alias="best", step="one").status == 422


def test_a_job_is_cancelled(browser: Browser, platform: Platform) -> None:
    rows = [{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]}]
    (model,) = platform.models.list(entity="acme", project="bots")
    job = platform.training.sft(model, rows)
    assert "queued" in browser.get(f"jobs/{job.id}")[1]
    browser.post(f"jobs/{job.id}/cancel", token=browser.token())
    assert job.status == "cancelled"


def test_a_model_is_tried(browser: Browser) -> None:
    answer = browser.post("catalogue/echo/try", token=browser.token(), prompt="Good morning")
    assert text_of(answer) == "Good morning"
    assert browser.post("catalogue/echo/try", token=browser.token(), prompt="").status == 422


@pytest.mark.parametrize("token", ["", "0" * 64, "\u00e4"])
def test_a_form_of_another_page_changes_nothing(browser: Browser, platform: Platform, token: str) -> None:
    before = len(list(platform.keys.list()))
    assert browser.post("keys", token=token, name="forged").status == 403
    assert browser.post("logout", token=token).status == 403
    assert len(list(platform.keys.list())) == before
    assert browser.get("")[0] == 200


def test_forms_that_cannot_be_read_are_refused(browser: Browser) -> None:
    assert browser.send("POST", "keys", body=b"name=\xff\xfe%ff").status == 403
    assert browser.send("POST", "keys", body=b"&".join([b"a=1"] * 1000)).status == 422
    assert browser.send("POST", "keys", body=b"a" * 2**19).status == 413


# ---- without a login


def test_a_reader_sees_all_and_changes_nothing(platform: Platform) -> None:
    reader = Browser(Dashboard(platform, reader=host()), host="127.0.0.1:8000")
    for path in PAGES:
        status, text = reader.get(path)
        assert status == 200
        assert "<form method" not in text.replace('<form method="get"', ""), path
    assert reader.post("keys", token="", name="new").status == 403
    assert reader.post("login", key="x").status in (403, 404)


def test_a_reader_is_answered_on_this_machine_only(platform: Platform) -> None:
    """A page of elsewhere could have its own name resolved to 127.0.0.1, and read what is there."""
    dashboard = Dashboard(platform, reader=host())
    for name, status in (("localhost:80", 200), ("[::1]:8000", 200), ("evil.example", 403), ("127.0.0.1.evil", 403)):
        assert Browser(dashboard, host=name).get("jobs")[0] == status


def test_a_stream_is_answered_on_this_machine_only(platform: Platform) -> None:
    dashboard = Dashboard(platform, reader=host())

    async def stream(name: str) -> list[bytes]:
        response = await dashboard.ahandle(Request("GET", "/dashboard/runs", "live=1", [("host", name)], empty()))
        pages: Any = response.body
        return [piece async for piece in pages]

    assert [piece[:5] for piece in asyncio.run(stream("localhost"))] == [b"data:", b"event"]
    assert [piece[:5] for piece in asyncio.run(stream("evil.example"))] == [b"event"]


def test_addresses_that_cannot_be_read_are_refused(browser: Browser, platform: Platform) -> None:
    run = next(iter(platform.evaluations.runs.list(project="bots", entity="acme"))).id
    model = next(iter(platform.models.list(entity="acme"))).id
    assert browser.send("GET", "jobs", "&".join(["a=1"] * 101)).status == 422
    for start in ("\u00b2", "9" * 5000, "-1"):
        assert browser.get(f"runs/{run}/rows", **{"from": start})[0] == 422
        assert browser.post(f"models/{model}/promote", token=browser.token(), step=start).status == 422
    assert browser.get(f"models/{model}/{'9' * 5000}/x")[0] == 422


# ---- live pages


def test_a_live_page_is_sent_when_it_changes_and_ends_with_the_session(clock: ManualClock) -> None:
    with open_platform(clock=clock) as platform:
        key, dashboard = platform.keys.create("acme"), Dashboard(platform)
        browser = Browser(dashboard)
        browser.log_in(key.secret)

        async def follow() -> tuple[list[str], str]:
            sent = [("cookie", f"{COOKIE}={browser.cookie}")]
            response = await dashboard.ahandle(Request("GET", "/dashboard/", "live=1", sent, empty()))
            pages: Any = response.body
            first = await anext(pages)
            following = asyncio.ensure_future(anext(pages))
            platform.models.promote(
                platform.models.create("m", project="p", base_model="tabular-mini", entity="acme"), 0
            )
            second = await at_some_time(clock, following)
            platform.keys.revoke(key.key.id)
            ending = asyncio.ensure_future(anext(pages))
            return [json.loads(one.decode()[5:]) for one in (first, second)], (
                await at_some_time(clock, ending)
            ).decode()

        (first, second), end = asyncio.run(follow())
        assert "In production" not in first
        assert "In production" in second
        assert end.startswith("event: end")


async def at_some_time(clock: ManualClock, work: "asyncio.Future[bytes]") -> bytes:
    while not work.done():
        await clock.aadvance(1)
    return work.result()


async def empty() -> Any:
    return
    yield b""


def test_each_entity_has_a_share_of_the_threads_of_its_own(platform: Platform, dashboard: Dashboard) -> None:
    tenants: list[str] = []
    pool, begin = platform.threads.backends, platform.threads.backends.begin

    def noted(call: Any) -> None:
        tenants.append(call.tenant)
        begin(call)

    browser = Browser(dashboard)
    browser.log_in(platform.keys.create("acme").secret)
    headers = [("host", "yard.example"), ("cookie", f"{COOKIE}={browser.cookie}")]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pool, "begin", noted)
        response = asyncio.run(dashboard.ahandle(Request("GET", "/dashboard/jobs", "", headers, no_body())))
    assert response.status == 200
    assert tenants == ["(dashboard)", "(dashboard) acme"]


async def no_body() -> AsyncIterator[bytes]:
    return
    yield b""


def test_the_synchronous_server_has_no_stream_and_pages_are_polled(browser: Browser) -> None:
    response = browser.send("GET", "", "live=1")
    assert (response.status, response.body) == (204, b"")


# ---- mounted


def test_it_is_mounted_next_to_the_api_and_below_a_path(platform: Platform) -> None:
    from modelyard.wsgi import wsgi_app

    app, key = wsgi_app(platform, dashboard=True), platform.keys.create("acme").secret
    seen: list[Any] = []

    def get(path: str, **more: str) -> str:
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": path, "SCRIPT_NAME": "/yard", "wsgi.input": BytesIO(), **more}
        return b"".join(app(environ, lambda status, headers: seen.append((status, dict(headers))))).decode()

    get("/")
    assert seen[-1][1]["location"] == "/yard/dashboard/"
    assert json.loads(get("/v1/preview/models", HTTP_AUTHORIZATION=f"Bearer {key}"))["data"]
    assert "/yard/dashboard/login" in get("/dashboard/login")
    assert ".modelyard" in get("/dashboard/static/style.css")
    assert seen[-1][1]["content-type"].startswith("text/css")


def test_tags_and_notes_are_changed_shown_escaped_and_searched() -> None:
    with open_platform() as platform:
        model = platform.models.create("bot", project="demo", base_model="tabular-mini")
        run = platform.evaluations.run("quiz", "echo", [{"prompt": "a", "expected": "a"}], project="demo").run
        browser = Browser(Dashboard(platform))
        browser.log_in(platform.keys.create("local").secret)
        pages = (f"models/{model.id}", f"models/{model.id}/0", f"runs/{run.id}")
        for page in pages:
            form = {"tags": "lr sweep, <b>,", "note": f"{HOSTILE}\r\nend", "token": browser.token(page)}
            assert browser.post(f"{page}/annotate", **form).status == 303
            shown = browser.get(page)[1]
            assert "&lt;b&gt;" in shown
            assert "<script>alert" not in shown
        assert platform.annotations.get(run.id).tags == ("<b>", "lr sweep")
        for page in ("models", "runs"):
            for words, found in (("LR SW", True), ("nowhere", False)):
                assert ("lr sweep" in browser.get(page, q=words)[1].replace(words, "")) is found
        assert platform.annotations.get("demo/bot:step0").note.endswith("\nend")
        assert browser.post(f"{pages[0]}/annotate", tags="", note="", token="wrong").status == 403
        assert browser.post(f"{pages[0]}/annotate", tags="", note="", token=browser.token()).status == 303
        assert platform.annotations.get("demo/bot").updated_at is None


def test_jobs_are_searched_by_tag_note_model_and_message(platform: Platform) -> None:
    with open_platform() as platform:
        model = platform.models.create("bot", project="demo", base_model="tabular-mini")
        examples = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}]
        job = platform.training.sft(model, examples)
        platform.annotations.set(job.id, tags=["nightly"], note="slow")
        browser = Browser(Dashboard(platform))
        browser.log_in(platform.keys.create("local").secret)
        for words in ("night", "slow", "demo/bot", "SFT"):
            assert job.id in browser.get("jobs", q=words)[1], words
        assert "No job found." in browser.get("jobs", q="nothing of ours")[1]


def test_rows_are_sliced_by_a_field_and_say_what_they_used() -> None:
    with open_platform() as platform:
        priced = attrs.evolve(platform.catalogue.get("echo"), pricing=Pricing(prompt=1, completion=2))
        platform.catalogue.register(priced)
        rows = [{"prompt": f"say {n}", "expected": f"say {n % 2}", "topic": f"t&{n % 2}"} for n in range(6)]
        run = platform.evaluations.run("quiz", "echo", rows, project="demo").run
        reader = Browser(Dashboard(platform, reader=host()), host="127.0.0.1")
        path = f"runs/{run.id}/rows"
        table = reader.get(path, field="topic")[1]
        assert re.findall(r">(t&amp;\d)</a></td><td[^>]*>(\d)</td><td[^>]*>([\d.]+ %)</td>", table) == [
            ("t&amp;0", "3", "33.3 %"),
            ("t&amp;1", "3", "33.3 %"),
        ]
        shown = reader.get(path, field="topic", value="t&1")[1]
        assert re.findall(r"id=\"row-(\d)-0\"", shown) == ["1", "3", "5"]
        assert re.search(r"<dt>used</dt><dd>[\d.]+ ms · \d+ \+ \d+ tokens · \$", shown)
        assert re.findall(r"id=\"(row-\d-0)\"", reader.get(path, row="4")[1]) == ["row-4-0"]
        assert "No row fits." in reader.get(path, field="topic", value="none")[1]


def test_rows_are_paged_and_a_page_looks_at_a_bounded_number_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_pages, "SHOWN_ROWS", 3)
    monkeypatch.setattr(row_pages, "SCANNED", 4)
    with open_platform() as platform:
        asked = [{"prompt": f"say {n}", "expected": "" if n < 9 else f"say {n}"} for n in range(10)]
        run = platform.evaluations.run("quiz", "echo", asked, "exact_match", project="demo").run
        reader = Browser(Dashboard(platform, reader=host()), host="127.0.0.1")

        def walk(**query: str) -> list[list[str]]:
            pages, address = [], f"runs/{run.id}/rows?{urlencode(query)}"
            while address:
                page = reader.get(address.partition("?")[0], **dict(parse_qsl(address.partition("?")[2])))[1]
                pages.append(re.findall(r'id="row-(\d+)-0"', page))
                further = re.search(r'href="/dashboard/([^"]+)">Further rows', page)
                address = unescape(further[1]) if further else ""
            return pages

        assert walk() == [["0", "1", "2"], ["3", "4", "5"], ["6", "7", "8"], ["9"]]
        assert walk(q="say 9") == [[], [], ["9"]]
        assert walk(row="7") == [["7"]]


# ---- what takes long to make


def rest_of(page: str) -> dict[str, str] | None:
    """The query of the link to the whole page; None on a page that is whole."""
    found = re.search(r'data-load="Reading [^"]+">[^<]*<a href="\?([^"]+)"', page)
    return dict(parse_qsl(unescape(found[1]))) if found else None


def test_pages_of_long_runs_show_what_is_stored_at_once_and_the_rest_by_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_platform() as platform:
        rows = [{"prompt": f"say {n}", "expected": "say 1", "topic": f"t{n % 2}"} for n in range(4)]
        before, after = (
            platform.evaluations.run("quiz", of, rows, project="demo").run for of in ("echo", "tabular-mini")
        )
        reads: list[str] = []
        for name in ("report", "compare"):
            made = getattr(Evaluations, name)
            monkeypatch.setattr(
                Evaluations, name, lambda *of, made=made, name=name, **more: (reads.append(name), made(*of, **more))[1]
            )
        monkeypatch.setattr(views, "AT_ONCE", 3)
        monkeypatch.setattr(Rows, "__len__", None)  # the jobs know how many rows they have done
        reader = Browser(Dashboard(platform, reader=host()), host="127.0.0.1")
        pages: list[tuple[str, dict[str, str], str, str]] = [
            ("runs", {"q": "quiz"}, "25.0 %</a>", "<small>"),
            (f"runs/{before.id}", {}, "scores 25.0 % by exact_match.", "Rows, the worst first"),
            (
                "compare",
                {"baseline": before.id, "candidate": after.id},
                "scores 25.0 % by exact_match.",
                "is not shown to differ",
            ),
            (f"runs/{after.id}/rows", {"field": "topic"}, "row-0-0", "Scores by topic"),
        ]
        for path, query, stored, rest in pages:
            reads.clear()
            first = reader.get(path, **query)[1]
            assert stored in first
            assert rest not in first.split("Scores of these models")[-1]
            assert not reads
            whole = {**query, "whole": "1"}
            assert rest_of(first) == whole
            found = reader.get(path, **whole)[1]
            assert rest in found.split("Scores of these models")[-1]
            assert rest_of(found) is None
            assert reader.get(path, **query)[1] == found, "what has been made is kept"


def test_a_short_run_is_shown_whole_at_once(browser: Browser, platform: Platform) -> None:
    run = platform.evaluations.runs.list(project="bots", entity="acme").page(1).items[0]
    page = browser.get(f"runs/{run.id}")[1]
    assert "Rows, the worst first" in page
    assert rest_of(page) is None


def test_whatever_summary_a_client_stored_a_long_run_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "AT_ONCE", 0)
    summaries: list[dict[str, Any]] = [
        {},
        {"mean": "high", "trials": "many", "scorers": [1]},
        {"mean": 1, "trials": -1, "scorers": {HOSTILE: {"mean": HOSTILE, "scored": [], "unscored": 1.5}, "b": None}},
    ]
    references = [f"weave:///local/demo/object/{name}:v0" for name in ("quiz", "mine")]
    with open_platform() as platform:
        reader = Browser(Dashboard(platform, reader=host()), host="127.0.0.1")
        for summary in summaries:
            run = platform.evaluations.runs.create(*references, project="demo")
            platform.evaluations.predictions.create(references[1], {"a": 1}, "b", run_id=run.id, project="demo")
            platform.evaluations.runs.finish(run.id, summary, project="demo")
            for query in ({}, {"whole": "1"}):
                status, page = reader.get(f"runs/{run.id}", **query)
                assert status == 200
                assert "<script>alert" not in page
                assert (rest_of(page) is None) == bool(query)
            assert reader.get("runs")[0] == 200


def test_a_part_that_several_readers_ask_for_is_made_once() -> None:
    kept, begun, asked, go = Kept(), threading.Event(), threading.Event(), threading.Event()
    made: list[str] = []

    def make() -> Html:
        made.append("part")
        begun.set()
        go.wait(60)
        return Html("part")

    def ask() -> None:
        asked.set()
        kept("key", make)

    first = threading.Thread(target=kept, args=("key", make))
    first.start()
    assert begun.wait(60)
    second = threading.Thread(target=ask)
    second.start()
    assert asked.wait(60)
    assert kept("other", lambda: Html("at once")) == "at once", "other parts do not wait"
    go.set()
    first.join(60)
    second.join(60)
    assert made == ["part"]


def test_a_part_whose_making_failed_is_made_by_the_next_reader() -> None:
    kept = Kept()

    def fail() -> Html:
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        kept("key", fail)
    assert kept("key", lambda: Html("part")) == "part"


def test_a_key_is_shown_by_its_name() -> None:
    with open_platform() as platform:
        made = platform.keys.create("acme", name="nightly")
        key = platform.acting_as(made.key.principal())
        key.chat.complete(model="echo", messages="x")
        model = key.models.create("bot", base_model="tabular-mini")
        key.models.promote(model, 0)
        browser = Browser(Dashboard(platform))
        browser.log_in(made.secret)
        for page in (browser.get("usage", by="key")[1], browser.get(f"models/{model.id}")[1]):
            assert "nightly" in page
            assert made.key.id not in page


def test_titles_are_names_and_choices_say_of_what() -> None:
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    with open_platform(project="desk") as platform:
        reader = Browser(Dashboard(platform, reader=host()), host="127.0.0.1")
        assert "modelyard keys create" in reader.get("keys")[1]
        job = platform.training.sft(platform.models.create("bot", base_model="tabular-mini"), [{"messages": chat}] * 2)
        job.wait()
        run = platform.evaluations.run("quiz", "echo", [{"prompt": "a", "expected": "a", "topic": "t"}] * 2).run
        assert "<h1>SFT job of desk/bot</h1>" in reader.get(f"jobs/{job.id}")[1]
        assert "<h1>Evaluation of echo on quiz</h1>" in reader.get(f"jobs/{platform.jobs.get(run.id).id}")[1]
        listed = reader.get("jobs")[1]
        assert ">status: <" in listed
        assert ">kind: <" in listed
        assert re.search(r'href="[^"]*field=topic"', reader.get(f"runs/{run.id}/by")[1])


def test_scores_of_more_evaluations_than_fit_are_left_to_the_search() -> None:
    with open_platform(entity="acme") as platform:
        for model in ("echo", "tabular-mini"):
            for at in range(8):
                rows = [{"prompt": "a", "expected": "a"}]
                platform.evaluations.run(f"quiz-{min(at, 6)}", model, rows, project="q" * 40 if at == 7 else "p")
        shown = Browser(Dashboard(platform, reader=host()), host="127.0.0.1").get("runs")[1]
    matrix = shown[shown.index("Scores of these models") :]
    headings = re.findall('<th class="number[^"]*">([^<]*)<', matrix)
    same = [f"{'q' * 24}…/quiz-6: exact_match", "p/quiz-6: exact_match"]
    assert headings == [*same, *(f"quiz-{at}: exact_match" for at in (5, 4, 3, 2))]
    assert "2 more evaluations have scores." in matrix


def test_a_short_name_is_not_broken_at_its_hyphen() -> None:
    names = ("tabular-mini", "2026-11-30", "a b-c", "-0.5", "a-name-that-is-longer-than-that")
    kinds = [re.findall('<td class="([a-z ]*)"', table([("m", "number")], [[name]])) for name in names]
    assert kinds == [["number word"], ["number word"], ["number"], ["number"], ["number"]]


def test_a_metric_that_is_not_compared_has_no_digest() -> None:
    digest = "pj64nc4rgISlXXu2FQgXUzbtJ4ctxBflVoqkForWDac"
    found = Comparison(0, 0, 0, ReportOptions(), (), {f"acme/p/right:{digest}": "why"})
    shown = _uncompared(found)
    assert f'<span title="acme/p/right:{digest}">acme/p/right:pj64nc4r…</span>' in shown


# ---- a store that is away --------------------------------------------------------------------------------------------


def waits_of(dashboard: Dashboard, platform: Platform, request: Request, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ask while the store is away. Return the status, and how often the store was waited for."""
    waits = []

    def away(*_: object, **__: object) -> None:
        waits.append(1)
        raise StoreBusy("the server cannot be reached")

    with monkeypatch.context() as patched:
        patched.setattr(platform._runtime.store, "read", away)
        patched.setattr(platform._runtime.store, "transact", away)
        response = asyncio.run(dashboard.ahandle(request))
    return [response.status, len(waits)]


@pytest.mark.parametrize("path", ["", "models", "jobs", "usage"])
def test_a_page_waits_once_for_a_store_that_is_away(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_platform() as platform:
        dashboard = Dashboard(platform)
        browser = Browser(dashboard)
        browser.log_in(platform.keys.create(entity="acme").secret)
        cookie = [("host", browser.host), ("cookie", f"{COOKIE}={browser.cookie}")]

        async def nothing() -> AsyncIterator[bytes]:
            yield b""

        request = Request("GET", f"/dashboard/{path}", "", cookie, nothing())
        assert waits_of(dashboard, platform, request, monkeypatch) == [503, 1]
        assert browser.get(path)[0] == 200


def test_the_menu_asks_a_store_that_is_away_once() -> None:
    asked = []

    def away(_: object) -> bool:
        asked.append(1)
        raise StoreBusy("the server cannot be reached")

    names = ("one", "other")
    pages = [DashboardPage("GET", (name,), lambda view: HtmlPage("Page", html("")), name, away) for name in names]
    with open_platform(parts=[*STANDARD, Part("menu", pages=lambda: pages)]) as platform:
        browser = Browser(Dashboard(platform))
        browser.log_in(platform.keys.create(entity="acme").secret)
        assert browser.get("usage")[0] == 200
    assert len(asked) == 1
