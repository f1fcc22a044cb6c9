"""The pages of traced calls: lists by op, status and time, and one call with its tree and what answered."""

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from modelyard import Platform, open_platform
from modelyard.asgi import Request
from modelyard.domain.identity import Principal, Scope, host
from modelyard.parts.dashboard.app import Dashboard
from modelyard.parts.traces import pages
from modelyard.testing import ManualClock


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    """A store with 20 traces of acme, a second apart, every fifth of which failed, and one call of the host."""
    with open_platform(clock=ManualClock()) as platform:
        calls, place = platform.compat.traces.calls, {"entity": "acme", "project": "desk"}
        for number in range(20):
            outer = calls.start(f"answer {number % 2}", {"question": f"q{number}"}, **place)
            inner = calls.start("search", {"messages": [{"role": "user", "content": f"find {number}"}]}, parent=outer)
            platform.clock.advance(0.5)
            error = "ValueError" if number % 5 == 4 else None
            calls.end(inner.id, number, summary={"usage": {"m": {"prompt_tokens": 3, "completion_tokens": 4}}}, **place)
            calls.end(outer.id, f"a{number}", exception=error, **place)
            platform.clock.advance(0.5)
        calls.start("the host's")
        yield platform


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of 4 calls, for which 10 are read at most."""
    monkeypatch.setattr(pages, "PAGE", 4)
    monkeypatch.setattr(pages, "EXAMINED", 10)


def shown(platform: Platform, path: str, query: str = "", reader: Principal | None = None) -> tuple[int, str]:
    dashboard = Dashboard(platform, reader=reader or host("local"))
    answer = dashboard.handle(
        Request("GET", f"/dashboard/{path}", query, [("host", "127.0.0.1")], iter(())),
    )
    assert isinstance(answer.body, bytes)
    return answer.status, answer.body.decode()


def asked(platform: Platform, query: str, **more: Any) -> list[str]:
    """What the calls of a list were asked, page after page."""
    found, address = list[str](), query
    for _ in range(20):
        _, page = shown(platform, "traces", address, **more)
        found += re.findall(r'data-label="asked">([^<]*)<', page)
        further = re.search(r'href="/dashboard/traces\?([^"]*skip=[^"]*)"', page)
        if further is None:
            return found
        address = further[1].replace("&amp;", "&")
    raise AssertionError("the pages have no end")


OUTER = [f"{{&quot;question&quot;: &quot;q{number}&quot;}}" for number in reversed(range(20))]


@pytest.mark.usefixtures("few")
def test_lists_are_read_page_by_page_to_their_ends(platform: Platform) -> None:
    desk = "project=acme/desk"
    assert asked(platform, "") == ["{}", *OUTER]
    assert asked(platform, desk) == OUTER
    assert asked(platform, f"{desk}&status=error") == OUTER[::5]
    assert asked(platform, f"{desk}&op=answer+1") == OUTER[::2]
    assert asked(platform, f"{desk}&op=answer+1&status=error") == OUTER[::10]
    assert asked(platform, f"{desk}&op=search&status=success") == [f"find {number}" for number in reversed(range(20))]
    assert asked(platform, f"{desk}&op=search&status=error") == []
    assert len(asked(platform, f"{desk}&inner=1")) == 40
    assert asked(platform, "status=running") == ["{}"]
    began = next(iter(platform.compat.traces.calls.list(entity="acme", project="desk"))).started_at
    since, until = (f"{began + timedelta(seconds=at):%Y-%m-%dT%H:%M:%S}" for at in (3, 13))
    assert asked(platform, f"{desk}&since={since}&until={until}") == OUTER[7:17]


def test_a_call_is_shown_with_its_tree_and_what_was_said_of_it(platform: Platform) -> None:
    calls = platform.compat.traces.calls
    outer = next(iter(calls.list(entity="acme", project="desk")))
    platform.compat.traces.feedback.add(outer.ref, "rating", {"stars": 5}, creator="ann")
    status, page = shown(platform, f"traces/acme/desk/{outer.id}")
    assert status == 200
    for words in ("answer 0", "q0", "a0", "rating", "stars", "ann", ">search</a>"):
        assert words in page
    inner = next(one for one in calls.list(entity="acme", project="desk") if one.parent_id == outer.id)
    page = shown(platform, f"traces/acme/desk/{inner.id}")[1]
    assert "<dt>tokens</dt><dd>7</dd>" in page
    assert "<b>search</b>" in page


def test_a_call_leads_to_its_ledger_entry_checkpoint_and_job(platform: Platform) -> None:
    platform.models.create("bot", project="p", base_model="tabular-mini")
    row = {"messages": [{"role": "user", "content": "ping"}, {"role": "assistant", "content": "pong"}]}
    job = platform.training.sft("p/bot", [row] * 2)
    job.wait()
    answer = platform.chat.complete(model="p/bot", messages="ping")
    call = platform.compat.traces.calls.start("ask")
    platform.compat.traces.calls.end(call.id, {"object": "chat.completion", "id": answer.id})
    page = shown(platform, f"traces/{call.entity}/{call.project}/{call.id}")[1]
    assert answer.id in page
    assert f'/dashboard/jobs/{job.id}"' in page
    assert "p/bot, step 1</a>" in page


def test_only_ones_own_calls_are_seen(platform: Platform) -> None:
    acme = Principal("acme", "acme", Scope("acme"))
    assert asked(platform, "", reader=acme) == OUTER
    other = Principal("desk", "acme", Scope("acme", frozenset(["other"])))
    assert asked(platform, "", reader=other) == []
    theirs = next(iter(platform.compat.traces.calls.list()))
    for reader in (acme, other):
        path = f"traces/{theirs.entity}/{theirs.project}/{theirs.id}"
        assert shown(platform, path, reader=reader)[0] == 404
        assert shown(platform, "traces", f"project={theirs.entity}/{theirs.project}", reader)[0] == 403


@pytest.mark.parametrize(
    "query", ["status=odd", "project=acme", "since=yesterday", "skip=-1", "until=9999-12-31T23:59:59"]
)
def test_filters_that_mean_nothing_are_refused(platform: Platform, query: str) -> None:
    assert shown(platform, "traces", query)[0] == (200 if "until" in query else 422)


def test_a_collection_shows_what_it_has_made_and_the_training_on_it(platform: Platform) -> None:
    platform.models.create("learner", project="p", base_model="tabular-mini")
    for words in ("one", "two", "two"):
        platform.chat.complete(model="echo", messages=words, store=True)
    made = platform.traffic.submit("asked", sources=["chat"], train="p/learner").result()
    (job,) = platform.traffic.list()
    page = shown(platform, f"jobs/{job.id}")[1]
    for words in ("local/default/asked", "2 rows", "equal 1", f'/dashboard/jobs/{made.training_job_id}"'):
        assert words in page
    assert ">collect " in shown(platform, "jobs")[1]


def test_the_answer_of_a_model_is_shown_as_what_it_says() -> None:
    with open_platform() as platform:
        call = platform.compat.traces.calls.start("chat", {"messages": [{"role": "user", "content": "when?"}]})
        said = [{"index": 0, "message": {"role": "assistant", "content": "on <Friday>"}}]
        platform.compat.traces.calls.end(call.id, {"choices": said})
        path = f"/dashboard/traces/{call.entity}/{call.project}/{call.id}"
        request = Request("GET", path, "", [("host", "127.0.0.1")], iter([b""]))
        body: Any = Dashboard(platform, reader=host()).handle(request).body
    assert b"<pre><b>assistant</b>\non &lt;Friday&gt;</pre>" in body
    assert b"index" not in body
