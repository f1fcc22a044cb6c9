"""Stored answers are judged as they come, on a purse that is never overdrawn, once each, and nobody waits for it."""

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner

from each import each_case
from http_client import client_of
from modelyard import Platform, Pricing, open_platform
from modelyard.cli import main
from modelyard.domain.usage import LedgerEntry
from modelyard.errors import InvalidInput, ModelNotFound, NotFound
from modelyard.parts.review import watching
from modelyard.parts.review.part import PART
from modelyard.parts.review.watches import ASKED, JUDGED, STOPPED, Watch
from modelyard.platform.paging import iter_index
from modelyard.testing import ManualClock
from page_reader import Reader

JUDGE = {"type": "llm_judge", "model": "critic", "prompt": "{output}", "options": {"max_tokens": 4}}
DAY = 24 * 3600


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 11, 30, 12, tzinfo=UTC))


@pytest.fixture
def platform(tmp_path: Path, clock: ManualClock) -> Iterator[Platform]:
    with open_platform(str(tmp_path / "yard.db"), clock=clock, entity="acme") as platform:
        with_critic(platform)
        yield platform


def with_critic(platform: Platform) -> None:
    entry = attrs.evolve(platform.catalogue.get("echo"), id="critic", pricing=Pricing(prompt="0.01", completion="0.01"))
    platform.catalogue.register(entry, answers_as="echo")


def ask(platform: Platform, count: int = 10, words: str = "yes no", store: bool = True) -> list[str]:
    """Ask questions that the echo answers, and the critic then finds right or wrong by turns."""
    said = words.split()
    texts = [f"{at} {said[at % len(said)]}" for at in range(count)]
    return [platform.chat.complete(model="echo", messages=text, store=store).id for text in texts]


def start(platform: Platform, share: float = 1.0, purse: str = "5", scorer: Any = JUDGE) -> Watch:
    return platform.review.watches.start("echo", {"good": scorer}, share=share, purse=purse)


def paid(platform: Platform) -> Decimal:
    found = platform._runtime.store.read(lambda snapshot: [*iter_index(snapshot, LedgerEntry, "by_entity", "acme")])
    return sum((one.cost for one in found), Decimal(0))


def states(platform: Platform, watch: Watch) -> list[str]:
    return [one.state for one in platform.review.watches.answers(watch.id)]


def test_what_is_stored_from_now_on_is_judged_and_corrected_by_labels(platform: Platform, clock: ManualClock) -> None:
    ask(platform)  # before it
    watch = start(platform)
    asked = ask(platform)
    ask(platform, 5, store=False)
    watched = platform.review.watches.look(watch.id)
    assert {one.answer_id for one in platform.review.watches.answers(watch.id)} == {*asked}
    assert states(platform, watch) == [JUDGED] * 10
    assert watched.spent == paid(platform) > 0
    (today,) = platform.review.watches.days(watch.id)
    assert (today.day, today.mean.corrected.rows, today.mean.corrected.judged) == ("2026-11-30", 10, 0.5)
    assert today.mean.corrected.interval is None
    assert today.mean.check.reason == "nobody has labelled rows that it scored"
    clock.advance(DAY)
    ask(platform, 6, "yes")
    platform.review.watches.look(watch.id)
    run = platform.evaluations.runs.get(today.run_id)
    assert (run.state, run.summary and run.summary["mean"]) == ("completed", 0.5)
    review = platform.review.start(run.id, rows=10)
    for row in platform.review.rows(review.id, "ann"):
        platform.review.label(review.id, "ann", row.place, "yes" in str(row.output))
    first, second = platform.review.watches.days(watch.id)
    assert (first.mean.corrected.method, second.mean.corrected.method) == ("ppi", "rogan_gladen")
    assert (first.mean.corrected.mean, second.day) == (0.5, "2026-12-01")
    assert second.mean.corrected.interval is not None
    assert platform.evaluations.remarks(run) == (
        f"good, corrected by what people say: {platform.review.estimate(run)}",
    )


def test_a_share_is_drawn_by_a_digest_with_its_propensity(platform: Platform) -> None:
    watch = start(platform, 0.3)
    asked = ask(platform, 60)
    platform.review.watches.look(watch.id)
    drawn = platform.review.watches.answers(watch.id)
    assert {one.answer_id for one in drawn} == {one for one in asked if watch.is_drawn(one)}
    assert 5 < len(drawn) < 35
    assert {one.propensity for one in drawn} == {0.3}


def test_no_more_than_the_purse_is_spent_and_the_watch_says_so(platform: Platform) -> None:
    one = start(platform)
    ask(platform, 1)
    price = platform.review.watches.look(one.id).spent
    platform.review.watches.stop(one.id)
    before, purse = paid(platform), price * Decimal("3.5")
    watch = start(platform, purse=f"{purse:f}")
    ask(platform, 10, "yes")
    found = platform.review.watches.look(watch.id)
    assert 0 < paid(platform) - before <= found.spent <= purse
    assert (found.state, "USD are left in the purse" in found.reason) == (STOPPED, True)
    assert states(platform, watch).count(JUDGED) < 10


@each_case("at", ["before", "after"], ids=str)
def test_after_a_kill_nothing_is_judged_twice_and_what_was_reserved_stays_spent(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    watch, asked, earlier = start(platform), ask(platform, 3), paid(platform)
    scored = watching._Look._score

    def killed(self: Any, *of: Any) -> Any:
        if at == "after":
            scored(self, *of)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(watching._Look, "_score", killed)
        with pytest.raises(KeyboardInterrupt):
            platform.review.watches.look(watch.id)
    reserved, booked = platform.review.watches.get(watch.id).spent, paid(platform)
    assert reserved >= booked - earlier
    found = platform.review.watches.look(watch.id)
    assert sorted(states(platform, watch)) == [ASKED, JUDGED, JUDGED]
    assert found.spent == reserved + paid(platform) - booked
    (today,) = platform.review.watches.days(watch.id)
    assert today.mean.corrected.rows == len(asked) - 1


def test_many_processes_judge_an_answer_once(tmp_path: Path, clock: ManualClock) -> None:
    path = str(tmp_path / "yard.db")
    with open_platform(path, clock=clock) as one, open_platform(path, clock=clock) as other:
        with_critic(one)
        watch = one.review.watches.start("echo", {"good": JUDGE}, share=1.0, purse=50)
        ask(one, 30)
        threads = [threading.Thread(target=watching.look, args=(each._runtime,)) for each in (one, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        one.review.watches.look(watch.id)
        found = one.review.watches.answers(watch.id)
        assert [each.state for each in found] == [JUDGED] * 30
        days = one.review.watches.days(watch.id)
        assert sum(day.mean.corrected.rows for day in days) == 30
        assert one.review.watches.get(watch.id).spent == sum(each.cost for each in found)
        ledger = one._runtime.store.read(lambda snapshot: [*iter_index(snapshot, LedgerEntry, "by_entity", "local")])
        assert sum(entry.model == "critic" for entry in ledger) == 30


def test_a_server_judges_in_a_thread_of_its_own(platform: Platform) -> None:
    watch = start(platform)
    ask(platform, 3)
    assert PART.upkeep is not None
    PART.upkeep(platform._runtime)
    thread = platform._runtime.cache.slot(watching.Watching)._thread
    assert thread is not None
    thread.join()
    assert states(platform, watch) == [JUDGED] * 3
    platform.review.watches.stop(watch.id)
    PART.upkeep(platform._runtime)
    assert platform._runtime.cache.slot(watching.Watching)._thread is thread


def test_a_judge_that_fails_is_told_and_the_next_answer_is_judged(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = start(platform)
    ask(platform, 2)
    scored, failing = watching._Look._score, [True]

    def once(self: Any, *of: Any) -> Any:
        return watching.ScoreResult(None, "it is down", scored=False) if failing.pop() else scored(self, *of)

    failing.insert(0, False)
    monkeypatch.setattr(watching._Look, "_score", once)
    found = platform.review.watches.look(watch.id)
    answers = platform.review.watches.answers(watch.id)
    assert sorted((one.state, one.reason) for one in answers) == [("failed", "it is down"), ("judged", "")]
    assert found.spent == sum(one.cost for one in answers)


def test_a_judge_of_another_meaning_begins_another_run(platform: Platform, clock: ManualClock) -> None:
    for words in ("no {x}", "yes {x}"):
        platform.variants.publish("default/critic", model="echo", template=words)
    platform.variants.promote("default/critic", 1)
    watch = start(platform, scorer={**JUDGE, "model": "variants/default/critic@prod"})
    ask(platform, 2)
    platform.review.watches.look(watch.id)
    clock.advance(1)
    platform.variants.promote("default/critic", 2)
    ask(platform, 3)
    platform.review.watches.look(watch.id)
    assert [one.mean.corrected.rows for one in platform.review.watches.days(watch.id)] == [2, 3]


def test_a_watch_is_started_seen_and_stopped_through_every_door(platform: Platform, tmp_path: Path) -> None:
    client = client_of(platform)
    body = {"model": "echo", "scorer": {**JUDGE, "name": "good"}, "share": 1.0, "purse": "2"}
    made = client.ok("POST", "/v1/watches", body)
    assert (made["state"], made["share"], made["purse"], made["spent"]) == ("running", 1.0, "2", "0")
    ask(platform, 4)
    platform.review.watches.look(made["id"])
    assert Decimal(client.ok("GET", f"/v1/watches/{made['id']}")["spent"]) == paid(platform)
    (day,) = client.ok("GET", f"/v1/watches/{made['id']}/days")["data"]
    assert (day["day"], day["estimate"]["rows"], day["estimate"]["judged"]) == ("2026-11-30", 4, 0.5)
    assert day["estimate"]["low"] is None
    assert [one["id"] for one in client.ok("GET", "/v1/watches")["data"]] == [made["id"]]
    reader = Reader(platform)
    assert f"/watches/{made['id']}" in reader.page("watches")
    page = reader.page(f"watches/{made['id']}")
    assert "2026-11-30" in page
    assert "nobody has labelled rows that it scored" in page
    assert reader.post(f"watches/{made['id']}/stop") == f"watches/{made['id']}"
    assert client.ok("POST", f"/v1/watches/{made['id']}/stop")["state"] == "stopped"
    assert platform.evaluations.runs.get(day["run"]).state == "completed"
    wrong = client.send("POST", "/v1/watches", {**body, "purse": "much"})
    assert (wrong.status, wrong.locs) == (422, [["body", "purse"]])
    store = ["--store", str(tmp_path / "yard.db")]
    scorer = json.dumps({**JUDGE, "name": "good"})
    said = CliRunner().invoke(main, ["watches", "start", "echo", scorer, "--share", "0.5", *store])
    assert said.exit_code == 0, said.output
    listed = CliRunner().invoke(main, ["watches", "list", "--json", *store]).output
    assert {one["id"] for one in json.loads(listed)} == {said.output.strip(), made["id"]}
    shown = CliRunner().invoke(main, ["watches", "show", made["id"], "--json", *store]).output
    assert [(one["day"], one["answers"]) for one in json.loads(shown)] == [("2026-11-30", 4)]
    assert CliRunner().invoke(main, ["watches", "stop", said.output.strip(), *store]).output == "it was stopped\n"
    assert CliRunner().invoke(main, ["watches", "delete", said.output.strip(), *store]).exit_code == 0
    assert client.ok("DELETE", f"/v1/watches/{made['id']}")["id"] == made["id"]
    with pytest.raises(NotFound):
        platform.review.watches.get(made["id"])


def test_what_no_watch_can_be_is_refused(platform: Platform) -> None:
    watches = platform.review.watches
    for wrong, match in (
        ({"share": 0}, "share: must be more than 0"),
        ({"share": True}, "share: must be more than 0"),
        ({"purse": "-1"}, "purse: must be an amount"),
        ({"purse": 0.5}, "purse: must be an amount"),
        ({"scorer": "exact_match"}, "scorer: asks for expected"),
        ({"scorer": {**JUDGE, "options": {"max_tokens": "x"}}}, "scorer.options.max_tokens: must be a whole number"),
        ({"scorer": lambda output, row: True}, "scorer: must be one declarative scorer"),
    ):
        asked: dict[str, Any] = {"model": "echo", "scorer": JUDGE, **wrong}
        with pytest.raises(InvalidInput, match=match):
            watches.start(**asked)
    with pytest.raises(ModelNotFound):
        watches.start("ehco", JUDGE)
    assert [*watches.list()] == []
