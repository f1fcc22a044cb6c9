"""Values of the host's with types that are no JSON are what the json module writes for them, or are refused at their
place: in calls, feedback, objects and tables."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from tests.shared.odd_values import is_data, is_its_json_or_refused, odd_values, plain

from modelyard import Platform, open_platform


@pytest.fixture(scope="module")
def opened() -> Iterator[Platform]:
    with open_platform() as platform:
        yield platform


def started(platform: Platform, value: Any) -> Any:
    call = platform.compat.traces.calls.start("op", {"v": value}, attributes={"v": value}, project="d")
    assert plain(call.attributes) == plain(call.inputs)
    assert is_data(call.inputs)
    return platform.compat.traces.calls.get(call.id, project="d").inputs["v"]


def ended(platform: Platform, value: Any) -> Any:
    call = platform.compat.traces.calls.start("op", project="d")
    found = platform.compat.traces.calls.end(call.id, [value], summary={"v": value}, project="d")
    assert plain(found.summary["v"]) == plain(found.output["value"][0])
    return found.output["value"][0]


def feedback(platform: Platform, value: Any) -> Any:
    return platform.compat.traces.feedback.add("weave:///local/d/call/x", "t", {"v": value}).payload["v"]


def an_object(platform: Platform, value: Any) -> Any:
    return platform.compat.traces.objects.publish("o", [value], project="d").content["value"][0]


def a_table(platform: Platform, value: Any) -> Any:
    table = platform.compat.traces.tables.create([value], project="d")
    (row,) = platform.compat.traces.tables.rows(table.digest, project="d")
    return row.value


DOORS: dict[str, Callable[[Platform, Any], Any]] = {
    door.__name__: door for door in (started, ended, feedback, an_object, a_table)
}


@pytest.mark.parametrize("door", DOORS)
@given(odd_values)
def test_a_value_is_its_json_or_is_refused_at_its_place(opened: Platform, door: str, value: Any) -> None:
    is_its_json_or_refused(partial(DOORS[door], opened), value)
