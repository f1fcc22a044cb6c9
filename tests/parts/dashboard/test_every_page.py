"""Every page: what a stranger is told of it, where its links lead, and what the policy of the dashboard would drop."""

import re
from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest

from dashboard_pages import FIRST, LONG_NAME, LONG_PROJECT, REFUSED, addresses, fill
from modelyard import Platform, Settings, open_platform
from modelyard.domain.identity import host
from modelyard.http.message import Request
from modelyard.parts.dashboard.app import Dashboard
from modelyard.parts.dashboard.routes import ROUTES
from modelyard.parts.dashboard.view import LONGEST_NAME, duration

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    with open_platform(settings=Settings(run_idle=0)) as platform:
        fill(platform)
        yield platform


@pytest.fixture(scope="module")
def pages(platform: Platform) -> dict[str, str]:
    dashboard = Dashboard(platform, reader=host())
    found = {path: page(dashboard, path) for path in addresses(platform)}
    assert {status for status, _ in found.values()} == {200}
    return {path: text for path, (_, text) in found.items()}


def page(dashboard: Dashboard, address: str) -> tuple[int, str]:
    path, _, query = address.partition("?")
    request = Request("GET", f"/dashboard/{path}", query, [("host", "127.0.0.1")], iter([b""]))
    answer = dashboard.handle(request)
    body: Any = answer.body
    return answer.status, (body if isinstance(body, bytes) else b"".join(body)).decode(errors="replace")


def test_no_page_is_left_out(platform: Platform, pages: dict[str, str]) -> None:
    added = [(one.method, one.path) for part in platform.parts for one in part.pages()]
    routes = {path for method, path in [*((method, path) for method, path, _ in ROUTES), *added] if method == "GET"}
    seen = [tuple(address.partition("?")[0].split("/")) for address in pages]
    files = {route for route in routes if route[-1] == "{file}"}
    assert {route for route in routes - files if not any(_is_of(route, path) for path in seen)} == set()


def _is_of(route: tuple[str, ...], path: tuple[str, ...]) -> bool:
    pairs = zip(route, path, strict=True) if len(route) == len(path) else [("", "another")]
    return all(one.startswith("{") or one == other for one, other in pairs)


def test_each_page_says_what_it_tells_under_a_title_that_is_a_name(pages: dict[str, str]) -> None:
    with open_platform() as platform:
        dashboard = Dashboard(platform, reader=host())
        first = {f"empty {path}": page(dashboard, path)[1] for path in FIRST if not path.startswith("api")}
    for address, text in (pages | first).items():
        (title,) = re.findall("<h1>(.*?)</h1>", text)
        named = re.sub("run-[0-9a-f-]{36}-0", "", title)  # of a model that Tinker's client has begun
        assert not re.search("[0-9a-f]{8}-[0-9a-f]{4}", named), address
        assert title not in ("Run", "Job", "Model"), address
        assert address == "api" or re.search('</h1><p class="quiet lead">[A-Z][^<]{20,}[.]</p>', text), address


def test_no_page_has_a_style_that_the_policy_drops_or_an_empty_table(pages: dict[str, str]) -> None:
    for address, text in pages.items():
        assert not re.search(r"<[^>]* style=", text.replace(' style="color-scheme', "")), address
        assert "<tbody></tbody>" not in text, address


def test_letters_of_every_script_are_shown_as_they_are(pages: dict[str, str]) -> None:
    shown = [address for address, text in pages.items() if "\u05e9\u05dc\u05d5\u05dd" in text]
    assert any(address.startswith("traces/") for address in shown)
    assert [address for address, text in pages.items() if re.search(r"\\u[0-9a-f]{4}", text)] == []


def test_a_long_name_in_a_title_and_in_a_list_keeps_its_ends(pages: dict[str, str]) -> None:
    found = re.search(f'<h1><span title="{LONG_PROJECT}/{LONG_NAME}">([^<]*)</span></h1>', "".join(pages.values()))
    assert found is not None
    shown = found.group(1)
    assert shown.startswith("ppp")
    assert shown.endswith(LONG_NAME[-30:])
    assert len(shown) == LONGEST_NAME
    assert f"…{LONG_NAME[-35:]}</span></a>" in pages["models"]  # of the host, with the entity before it


def test_a_job_that_has_ended_awaits_nothing(platform: Platform, pages: dict[str, str]) -> None:
    ended = {f"jobs/{job.id}" for job in platform.jobs.list() if job.ended_at is not None} & {*pages}
    assert ended
    assert [address for address in ended if " yet" in pages[address]] == []


def test_a_list_shows_the_first_tags_and_how_many_more(pages: dict[str, str]) -> None:
    assert "and 8 more" in pages["models"]


def test_no_link_of_a_page_leads_nowhere(platform: Platform, pages: dict[str, str]) -> None:
    dashboard = Dashboard(platform, reader=host())
    known = set(pages)
    for address, text in pages.items():
        for link in map(unescape, re.findall('href="/dashboard/([^"]*)"', text)):
            if link in known or link.startswith("static/"):
                continue
            known.add(link)
            assert page(dashboard, link)[0] == 200, (address, link)


def test_what_is_refused_says_why_below_the_header_of_every_page() -> None:
    with open_platform() as platform:
        dashboard = Dashboard(platform, reader=host())
        for address in REFUSED:
            status, text = page(dashboard, address)
            assert status in (404, 422), address
            assert '<span class="chip">read-only</span></header>' in text, "as on every page of a reader"
            assert "To the first page" in text


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.0, "0 s"), (0.00039, "0.39 ms"), (0.86, "860 ms"), (0.9996, "1 s"), (59.0, "59 s")]
)
def test_a_short_time_is_said_in_milliseconds(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown
