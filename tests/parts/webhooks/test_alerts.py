"""Who is to know that requests fail, or hit a limit, is told once in a window, by however many processes serve."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard import Platform, ScriptedBackend, open_platform
from modelyard.backends import on
from modelyard.cli import main
from modelyard.errors import Forbidden, InvalidInput, ModelyardError, StoreError
from modelyard.parts.webhooks.alerts import WINDOW, look
from modelyard.parts.webhooks.records import WebhookEvent
from modelyard.testing import ManualClock


def answers() -> ScriptedBackend:
    return ScriptedBackend([on("fail").answer(ModelyardError("the model broke")), on().answer("fine")], models=["m"])


@pytest.fixture
def platform(clock: ManualClock) -> Iterator[Platform]:
    with open_platform(backend=answers(), clock=clock) as platform:
        platform.webhooks.add("https://hooks.example")
        yield platform


def ask(platform: Platform, words: str = "fine", times: int = 1, **options: Any) -> None:
    for _ in range(times):
        try:
            platform.chat.complete(model="m", messages=words, **options)
        except ModelyardError:
            assert words == "fail" or options


def posted(platform: Platform, type: WebhookEvent, **of: Any) -> list[dict[str, Any]]:
    bodies = [json.loads(one.body) for one in platform.webhooks.waiting(**of)]
    return [body["data"] for body in bodies if body["type"] == type]


def failed(platform: Platform) -> list[dict[str, Any]]:
    look(platform._runtime)
    return posted(platform, WebhookEvent.REQUESTS_FAILED)


@examples(30)
@given(st.lists(st.tuples(st.sampled_from(["fine", "fail", "look"]), st.integers(1, 6))), st.floats(0.05, 1))
def test_it_is_told_if_the_share_of_the_window_is_reached_whenever_it_is_looked(
    steps: list[tuple[str, int]], share: float
) -> None:
    with open_platform(backend=answers(), clock=ManualClock()) as platform:
        platform.webhooks.add("https://hooks.example")
        platform.webhooks.alert_of_failures(share, at_least=3)
        fine = bad = pending = 0
        due = False
        for what, times in [*steps, ("look", 1)]:
            if what != "look":
                ask(platform, what, times)
                fine, bad = fine + times * (what == "fine"), bad + times * (what == "fail")
                pending += times * (what == "fail")
                continue
            due = due or (pending > 0 and bad >= 3 and bad >= share * (bad + fine))
            pending = 0
            assert len(failed(platform)) == due


def test_a_storm_is_told_once_a_window(platform: Platform, clock: ManualClock) -> None:
    for round in range(1, 4):
        for _ in range(20):
            ask(platform, "fail", 10)
            assert len(failed(platform)) == round
        clock.advance(WINDOW.total_seconds())
    first = failed(platform)[0]
    assert (first["entity"], first["failed"], first["answered"], first["seconds"]) == ("local", 10, 0, 300)
    assert first["code"] == ModelyardError.code


def test_what_failed_in_the_window_before_does_not_count(platform: Platform, clock: ManualClock) -> None:
    ask(platform, "fail", 4)
    assert failed(platform) == []
    clock.advance(WINDOW.total_seconds())
    ask(platform, "fail", 4)
    assert failed(platform) == []
    ask(platform, "fail")
    assert len(failed(platform)) == 1


def test_streams_count_as_answers_do(platform: Platform) -> None:
    for _ in range(5):
        with pytest.raises(ModelyardError):
            list(platform.chat.stream(model="m", messages="fail"))
    assert len(failed(platform)) == 1


def test_a_limit_that_is_hit_is_told_once_with_its_key(platform: Platform, clock: ManualClock) -> None:
    key = platform.keys.create("local", requests_per_minute=1).key
    tenant = platform.acting_as(key.principal())
    for _ in range(2):
        ask(tenant, times=9, project="p")
        look(platform._runtime)
    (told,) = posted(platform, WebhookEvent.RATE_LIMIT_HIT)
    assert (told["entity"], told["key_id"], told["refused"]) == ("local", key.id, 8)
    assert failed(platform) == [], "a limit is no failure"


def test_processes_tell_together_and_each_entity_is_told_of_its_own(yard_file: Any, clock: ManualClock) -> None:
    with open_platform(yard_file, backend=answers(), clock=clock) as one:
        with open_platform(yard_file, backend=answers(), clock=clock) as other:
            one.webhooks.add("https://hooks.example")
            one.webhooks.add("https://hooks.example", entity="acme")
            one.webhooks.add("https://hooks.example", entity="quiet")
            for platform in (one, other):
                ask(platform, "fail", 3, entity="local")
                ask(platform, "fail", 9, entity="acme")
            for platform in (one, other, one):
                look(platform._runtime)
            told = posted(one, WebhookEvent.REQUESTS_FAILED)
            assert [(alert["entity"], alert["failed"]) for alert in told] == [("acme", 9), ("local", 6)]


def test_an_endpoint_that_wants_other_events_gets_none(clock: ManualClock) -> None:
    with open_platform(backend=answers(), clock=clock) as platform:
        platform.webhooks.add("https://hooks.example", events=["job.ended"])
        ask(platform, "fail", 9)
        assert failed(platform) == []


def test_a_store_that_is_away_does_not_end_the_upkeep(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise StoreError("away")

    ask(platform, "fail", 9)
    with monkeypatch.context() as patched:
        patched.setattr(type(platform._runtime.store), "transact", away)
        look(platform._runtime)
    assert len(failed(platform)) == 1, "they are counted when it is back"


def test_who_delivers_looks_too(platform: Platform) -> None:
    ask(platform, "fail", 9)
    platform.webhooks.deliver()
    assert len(posted(platform, WebhookEvent.REQUESTS_FAILED)) == 1


def test_a_rule_is_checked_and_of_the_whole_entity(platform: Platform, yard_file: Any) -> None:
    for share, at_least in ((0, 5), (1.5, 5), (True, 5), (0.5, 0), (0.5, 2.5)):
        with pytest.raises(InvalidInput):
            platform.webhooks.alert_of_failures(share, at_least=at_least)  # type: ignore[arg-type]
    some = platform.acting_as(platform.keys.create("acme", ["p"]).key.principal())
    with pytest.raises(Forbidden):
        some.webhooks.alert_of_failures(0.5)
    told = CliRunner().invoke(main, ["webhooks", "alert", "acme", "--share", "0.25", "--store", str(yard_file)])
    assert "acme is told when 5 or more requests fail, and 0.25 of all" in told.output
