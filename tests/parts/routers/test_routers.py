"""Prices by the length of the prompt and by the hour: in the ledger, in budgets, and as routers read them."""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import jsonschema
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_files import asking, uploaded
from modelyard import Platform, Pricing, Principal, Scope, open_platform
from modelyard.cli import main
from modelyard.domain.catalogue import CatalogueEntry
from modelyard.errors import BudgetExceeded, Forbidden, InvalidInput, ModelNotFound
from modelyard.parts.routers.document import listing
from modelyard.parts.routers.prices import KINDS, PriceRule, at
from modelyard.parts.routers.records import RouterListing
from modelyard.testing import ManualClock

MIDNIGHT = datetime(2026, 11, 30, tzinfo=UTC)
SCHEMA = jsonschema.Draft202012Validator(json.loads((Path(__file__).parent / "provider_schema.json").read_text()))
BASE = Pricing(prompt="0.002", completion="0.01", request="0.5", input_cache_read="0.001", image="0.3")
LONG = PriceRule(from_prompt_tokens=5, prompt="0.004", completion="0.02")
NIGHT = PriceRule(utc_start="22:00", utc_end="06:00", completion="0.005")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(MIDNIGHT + timedelta(hours=12))


@pytest.fixture
def yard(clock: ManualClock) -> Iterator[Platform]:
    with open_platform(clock=clock) as platform:
        entry = attrs.evolve(platform.catalogue.get("echo"), id="parrot", pricing=BASE)
        platform.catalogue.register(entry, answers_as="echo")
        platform.routers.set("parrot", [LONG, NIGHT])
        yield platform


def costs(platform: Platform) -> list[Decimal]:
    return [entry.cost for entry in platform.usage.list()]


# ---- in the ledger


def test_a_long_prompt_costs_what_its_rule_says(yard: Platform) -> None:
    for words in (4, 5):
        answer = yard.chat.complete(model="parrot", messages=" ".join(["word"] * words))
        assert answer.usage.prompt_tokens == words
        assert answer.usage.completion_tokens == words
    short, long = costs(yard)
    assert short == Decimal("0.5") + 4 * (Decimal("0.002") + Decimal("0.01"))
    assert long == Decimal("0.5") + 5 * (Decimal("0.004") + Decimal("0.02"))


@pytest.mark.parametrize(
    ("hour", "minute", "completion"),
    [(5, 59, "0.005"), (6, 0, "0.01"), (21, 59, "0.01"), (22, 0, "0.005"), (23, 59, "0.005"), (0, 0, "0.005")],
)
def test_an_answer_costs_what_the_hour_says_whole_and_streamed(
    yard: Platform, clock: ManualClock, hour: int, minute: int, completion: str
) -> None:
    clock.advance(((hour - 12) % 24 * 60 + minute) * 60)
    yard.chat.complete(model="parrot", messages="a b c")
    for _ in yard.chat.stream(model="parrot", messages="a b c"):
        pass
    assert costs(yard) == [Decimal("0.5") + 3 * (Decimal("0.002") + Decimal(completion))] * 2


def test_the_next_request_costs_what_the_next_hour_says(yard: Platform, clock: ManualClock) -> None:
    clock.advance(9 * 3600 + 59 * 60)  # 21:59
    for _ in range(2):
        yard.chat.complete(model="parrot", messages="a b c")
        clock.advance(60)
    assert costs(yard) == [Decimal("0.536"), Decimal("0.521")]


def test_the_hour_is_that_in_which_the_request_arrived(yard: Platform, clock: ManualClock) -> None:
    clock.advance(9 * 3600 + 59 * 60)  # 21:59
    stream = iter(yard.chat.stream(model="parrot", messages="a b c"))
    next(stream)
    clock.advance(120)
    for _ in stream:
        pass
    assert costs(yard) == [Decimal("0.5") + 3 * (Decimal("0.002") + Decimal("0.01"))]


def test_rows_of_evaluations_cost_the_same(yard: Platform) -> None:
    rows = [{"prompt": "a b c", "expected": "a b c"}, {"prompt": "a b c d e", "expected": "x"}]
    result = yard.evaluations.run("quiz", "parrot", rows, project="desk")
    expected = [Decimal("0.536"), Decimal("0.5") + 5 * (Decimal("0.004") + Decimal("0.02"))]
    assert [row.cost for row in result.rows] == expected
    assert sorted(costs(yard)) == expected


def test_what_is_changed_holds_for_the_next_request(yard: Platform) -> None:
    yard.chat.complete(model="parrot", messages="a b c d e")
    yard.routers.set("parrot", [PriceRule(from_prompt_tokens=5, prompt="1")])
    yard.chat.complete(model="parrot", messages="a b c d e")
    yard.routers.remove("parrot")
    yard.chat.complete(model="parrot", messages="a b c d e")
    assert costs(yard) == [Decimal("0.62"), Decimal("5.55"), Decimal("0.56")]


def test_a_budget_must_have_room_for_the_dearest_rule(yard: Platform) -> None:
    yard.usage.set_budget("0.61", entity="local")
    asked: Any = {"model": "parrot", "messages": "a b c d e", "max_tokens": 5}
    with pytest.raises(BudgetExceeded):
        yard.chat.complete(**asked)
    yard.usage.set_budget("0.62", entity="local")
    yard.chat.complete(**asked)
    assert costs(yard) == [Decimal("0.62")]


# ---- beside a plain reference

times = st.integers(0, 24 * 60 - 1).map(lambda minute: f"{minute // 60:02}:{minute % 60:02}")
amounts = st.integers(0, 9).map(lambda digit: f"0.{digit:03}")


@st.composite
def rules(draw: st.DrawFn) -> PriceRule:
    kinds = draw(st.sets(st.sampled_from(KINDS), min_size=1))
    window = draw(st.none() | st.tuples(times, times).filter(lambda pair: pair[0] != pair[1]))
    tokens = draw(st.integers(1 if window is None else 0, 6))
    named: Any = {kind: draw(amounts) for kind in kinds}
    if window is not None:
        named |= {"utc_start": window[0], "utc_end": window[1]}
    return PriceRule(tokens, **named)


def reference(every: list[PriceRule], kind: str, tokens: int, minute: int) -> Decimal:
    """The price by the words of the docs, with nothing shared."""
    price = getattr(BASE, kind)
    for rule in every:
        hours = True
        if rule.utc_start and rule.utc_end:
            start, end = (int(text[:2]) * 60 + int(text[3:]) for text in (rule.utc_start, rule.utc_end))
            hours = minute in {(start + more) % 1440 for more in range((end - start) % 1440)}
        if hours and tokens >= rule.from_prompt_tokens and getattr(rule, kind) is not None:
            price = getattr(rule, kind)
    return Decimal(price)


def read(entries: list[Any], tokens: int, minute: int) -> Decimal:
    """The price of a request by the rules of the format: the entry of the time, else that without; later overrides."""
    clock = minute // 60 * 100 + minute % 60

    def within(entry: Any) -> bool:
        start, end = entry["utc_start"], entry["utc_end"]
        return bool(start <= clock < end if start < end else clock >= start or clock < end)

    timed = [entry for entry in entries if "utc_start" in entry and within(entry)]
    assert len(timed) <= 1
    (entry,) = timed or [entry for entry in entries if "utc_start" not in entry]
    price = entry["cost_usd"]
    for override in entry.get("overrides", ()):
        if tokens >= override["when"]["prompt_tokens"]["gte"]:
            price = override["cost_usd"]
    return Decimal(price)


ENTRY = CatalogueEntry(
    *("parrot", "org/parrot", "Parrot", 1, "bf16", 4096, 512),
    pricing=BASE,
    input_modalities=("text", "image"),
    output_modalities=("text", "embeddings"),
    supported_sampling_parameters=("temperature", "top_k", "stop", "seed"),
    supported_features=("tools", "json_mode", "web_search"),
    datacenters=("DE",),
    deprecation_date="2027-01-31",
)


@given(st.lists(rules(), max_size=6), st.integers(0, 8), st.integers(0, 24 * 60 - 1))
def test_ledger_budget_and_listing_say_what_a_plain_reference_says(
    every: list[PriceRule], tokens: int, minute: int
) -> None:
    pricing = at(BASE, every, MIDNIGHT + timedelta(minutes=minute))
    held, dearest = pricing.of(tokens), pricing.dearest()
    expected = {kind: reference(every, kind, tokens, minute) for kind in KINDS}
    assert {kind: getattr(held, kind) for kind in KINDS} == expected
    assert all(getattr(dearest, kind) >= price for kind, price in expected.items())
    body = {"rules": [rule.as_data() for rule in every]}
    said = RouterListing("parrot", json.loads(json.dumps(body)))
    assert said.rules == tuple(every)
    document = listing(ENTRY, said, MIDNIGHT.date())
    SCHEMA.validate({"data": [document]})
    text, image = document["input_modalities"]
    places = {
        "prompt": (text, "prompt"),
        "input_cache_read": (text, "cached_prompt"),
        "image": (image, "prompt"),
        "completion": (document["output_modalities"][0], "completion"),
    }
    for kind, (owner, type_) in places.items():
        entries = [entry for entry in owner["pricing"] if entry["type"] == type_]
        assert read(entries, tokens, minute) == expected[kind]
        windows = [(entry.get("utc_start"), entry.get("utc_end")) for entry in entries]
        assert len(set(windows)) == len(windows)


@settings(max_examples=25, deadline=None)
@given(st.lists(rules(), max_size=4), st.integers(0, 24 * 60 - 1), st.lists(st.integers(1, 8), min_size=1, max_size=3))
def test_each_door_books_what_a_plain_reference_says(every: list[PriceRule], minute: int, lengths: list[int]) -> None:
    """Whole and streamed answers, embeddings of one text and of several, and batches."""
    with open_platform(clock=ManualClock(MIDNIGHT + timedelta(minutes=minute))) as platform:
        entry = attrs.evolve(platform.catalogue.get("echo"), id="parrot", pricing=BASE)
        platform.catalogue.register(entry, answers_as="echo")
        platform.routers.set("parrot", every)

        def price(prompt: int, completion: int) -> Decimal:
            named = {kind: reference(every, kind, prompt, minute) for kind in ("prompt", "completion")}
            return Decimal("0.5") + prompt * named["prompt"] + completion * named["completion"]

        texts = [" ".join(["word"] * length) for length in lengths]
        expected = [price(length, length) for length in lengths] * 3
        for text in texts:
            platform.chat.complete(model="parrot", messages=text)
            list(platform.chat.stream(model="parrot", messages=text))
        batch = uploaded(platform, [asking(str(at), text, model="parrot") for at, text in enumerate(texts)])
        platform.compat.batches.create(batch)
        platform.worker().run_until_idle()
        assert sorted(costs(platform)) == sorted(expected)
        platform.embeddings.create(model="parrot", input=texts)
        platform.embeddings.create(model="parrot", input=texts[:1])
        more = Counter(costs(platform))
        more.subtract(expected)
        assert +more == Counter([price(sum(lengths), 0), price(lengths[0], 0)])


# ---- on the command line


def test_rules_are_set_shown_and_removed_on_the_command_line(tmp_path: Path) -> None:
    store = ["--store", str(tmp_path / "yard.db")]
    open_platform(str(tmp_path / "yard.db")).close()

    def say(*words: str, code: int = 0) -> str:
        found = CliRunner().invoke(main, ["routers", *words, *store])
        assert found.exit_code == code, found.output
        return found.output

    rule = {"from_prompt_tokens": 5, "prompt": "0.004"}
    night = {"utc_start": "22:00", "utc_end": "06:00"}
    exact = json.dumps(night)[:-1] + ', "completion": 0.000005}'  # a number is read as it is written
    given_rules = ["--rule", json.dumps(rule), "--rule", exact]
    said = say("set", "echo", *given_rules, "--not-ready", "--capacity", "requests_per_minute=600")
    assert "requests_per_minute" in said
    shown = json.loads(say("show", "echo", "--json"))
    assert shown == {
        "model": "echo",
        "is_ready": False,
        "rules": [rule, {**night, "completion": "0.000005"}],
        "capacity": {"requests_per_minute": 600},
    }
    assert "rules.0: must set one of" in say("set", "echo", "--rule", '{"from_prompt_tokens": 5}', code=1)
    assert "is not like" in say("set", "echo", "--rule", "5", code=2)
    assert "is not like requests_per_minute=600" in say("set", "echo", "--capacity", "much", code=2)
    assert "did you mean 'echo'" in say("show", "ehco", code=1)
    say("remove", "echo")
    assert json.loads(say("show", "echo", "--json"))["rules"] == []


# ---- as routers read it


def test_the_listing_keeps_to_the_schema_and_says_what_was_set(yard: Platform) -> None:
    amounts = {"prompt_tokens_per_minute": 1000, "completion_tokens_per_minute": 500, "requests_per_minute": 60}
    yard.routers.set("parrot", [LONG, NIGHT], is_ready=False, capacity={**amounts, "concurrent_requests": 4})
    listed = yard.routers.document()
    SCHEMA.validate(listed)
    parrot = next(one for one in listed["data"] if one["id"] == "parrot")
    assert parrot["is_ready"] is False
    assert parrot["input_modalities"][0]["pricing"][0] == {
        "type": "prompt",
        "unit": "token",
        "cost_usd": "0.002",
        "overrides": [{"when": {"prompt_tokens": {"gte": 5}}, "cost_usd": "0.004"}],
    }
    assert [entry.get("utc_start") for entry in parrot["output_modalities"][0]["pricing"]] == [None, 0, 2200]
    assert parrot["capacity"] == [
        {"type": "request", "unit": "request", "per": "minute", "value": 60},
        {"type": "concurrency", "unit": "request", "value": 4},
    ]
    echo = next(one for one in listed["data"] if one["id"] == "echo")
    assert echo["is_ready"]
    assert "pricing" not in echo["input_modalities"][0]  # what is not billed is left out


def test_a_model_past_its_last_day_is_not_ready() -> None:
    said = RouterListing("parrot")
    last = datetime(2027, 1, 31, tzinfo=UTC).date()
    assert listing(ENTRY, said, last)["is_ready"]
    assert not listing(ENTRY, said, last + timedelta(days=1))["is_ready"]


def test_the_catalogue_of_the_specification_is_the_same_byte_for_byte(yard: Platform) -> None:
    from modelyard.http.catalogue.schemas import CatalogueBody
    from modelyard.http.message import dump

    before = dump(CatalogueBody.of(yard.catalogue.list()))
    yard.routers.remove("parrot")
    assert dump(CatalogueBody.of(yard.catalogue.list())) == before


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"prompt": "1"}, "rules.0: must depend on from_prompt_tokens, or on utc_start and utc_end"),
        ({"from_prompt_tokens": 5}, "rules.0: must set one of prompt, input_cache_read, completion, image"),
        ({"from_prompt_tokens": -1, "prompt": "1"}, "rules.0.from_prompt_tokens: must be a whole number"),
        ({"utc_start": "08:00", "prompt": "1"}, "rules.0.utc_end: utc_start and utc_end belong together"),
        ({"utc_start": "8:00", "utc_end": "09:00", "prompt": "1"}, "rules.0.utc_start: must be a time of day"),
        ({"utc_start": "24:00", "utc_end": "09:00", "prompt": "1"}, "rules.0.utc_start: must be a time of day"),
        ({"utc_start": "09:00", "utc_end": "09:00", "prompt": "1"}, "rules.0.utc_end: must differ from utc_start"),
        ({"from_prompt_tokens": 5, "prompt": 0.5}, "rules.0.prompt: must be an exact number"),
        ({"from_prompt_tokens": 5, "prompt": "-1"}, "rules.0.prompt: must be at least 0"),
    ],
)
def test_a_rule_that_says_nothing_sensible_is_refused(yard: Platform, rule: Any, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        yard.routers.set("parrot", [PriceRule(**rule)])
    assert str(refused.value).startswith(said)
    assert yard.routers.get("parrot").rules == (LONG, NIGHT)


def test_only_the_host_says_what_holds_of_known_models(yard: Platform) -> None:
    with pytest.raises(ModelNotFound):
        yard.routers.set("parot")
    with pytest.raises(InvalidInput, match=r"capacity\.tokens: is not known"):
        yard.routers.set("parrot", capacity={"tokens": 5})
    theirs = yard.acting_as(Principal("key", "acme", Scope("acme"), "key-id")).routers
    with pytest.raises(Forbidden):
        theirs.set("parrot")
    with pytest.raises(Forbidden):
        theirs.remove("parrot")
