"""The first page says what part of the requests failed, and within what time answers came."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard import ScriptedBackend, open_platform
from modelyard.backends import on
from modelyard.domain.identity import host
from modelyard.errors import ModelyardError
from modelyard.http.message import Request
from modelyard.parts import STANDARD
from modelyard.parts.dashboard.app import Dashboard
from modelyard.parts.dashboard.pages.home import _within
from modelyard.platform.meters import BOUNDS, TimeHistogram
from modelyard.testing.clock import ManualClock


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=200), st.sampled_from([0.5, 0.95]))
def test_that_part_of_the_times_is_within_what_is_said(times: list[float], part: float) -> None:
    histogram = TimeHistogram()
    histogram.add(times)
    said = _within(histogram.counts, part)
    bound = float("inf") if said.startswith("more") else float(said.removesuffix(" s"))
    assert sum(time <= bound for time in times) >= part * len(times)
    lower = max((one for one in BOUNDS if one < bound), default=0.0)
    assert lower == 0.0 or sum(time <= lower for time in times) < part * len(times)


def test_failures_and_times_are_shown_to_the_host() -> None:
    script = [on("fail").answer(ModelyardError("the model broke")), on().answer("fine")]
    with open_platform(backend=ScriptedBackend(script, models=["m"])) as platform:
        shown = _home(Dashboard(platform, reader=host()))
        assert "Answers" not in shown, "nothing was asked"
        for words in ("fine", "fine", "fine", "fail"):
            if words == "fail":
                with pytest.raises(ModelyardError):
                    platform.chat.complete(model="m", messages=words)
            else:
                platform.chat.complete(model="m", messages=words)
        shown = _home(Dashboard(platform, reader=host()))
        assert "1 (25.0 %)" in shown
        assert "95 % within" in shown


def test_without_the_part_of_metrics_the_page_is_shown() -> None:
    with open_platform(parts=[part for part in STANDARD if part.name != "metrics"]) as platform:
        assert "Health" in _home(Dashboard(platform, reader=host()))


def _home(dashboard: Dashboard) -> str:
    body: Any = dashboard.handle(Request("GET", "/dashboard/", "", [("host", "127.0.0.1")], iter([b""]))).body
    return (body if isinstance(body, bytes) else b"".join(body)).decode()


def test_the_slowest_answers_are_named() -> None:
    clock = ManualClock()
    waits = {"quick": 0.1, "slow": 40.0, "slower": 70.0}

    def wait(request: Any) -> str:
        clock.advance(waits[request.messages[-1].text])
        return "fine"

    with open_platform(backend=ScriptedBackend(wait, models=["m"]), clock=clock) as platform:
        _home(Dashboard(platform, reader=host()))  # begins to count
        ids = {}
        for words in ("slow", *["quick"] * 9, "slower"):
            ids[words] = platform.chat.complete(model="m", messages=words).id
        shown = _home(Dashboard(platform, reader=host()))
        assert shown.index(ids["slower"][-8:]) < shown.index(ids["slow"][-8:])
        assert "70 s" in shown
        assert "40 s" in shown
        assert shown.count("0.1 s") == 3
