"""Calls at other prices: to the last digit what each call would cost, added up one by one, and a million of them."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from modelyard import Platform, open_platform
from modelyard.domain.catalogue import Pricing
from modelyard.domain.completion import Usage
from modelyard.domain.identity import Principal, Scope
from modelyard.domain.usage import EXACT, LedgerEntry, cost
from modelyard.errors import InvalidInput
from modelyard.formats.json import dumps, loads
from modelyard.parts.routers.prices import PriceRule, at
from modelyard.parts.what_if.repricing import (
    Tariff,
    catalogue_tariffs,
    ledger_calls,
    plain_prices,
    reprice,
    tariffs_of,
)

BEGAN = datetime(2026, 11, 20, tzinfo=UTC)
RULES = (
    PriceRule(from_prompt_tokens=2_000, prompt="0.00000412", completion="0.0000171"),
    PriceRule(from_prompt_tokens=8_000, prompt="0.0000093", input_cache_read="0.0000004"),
    PriceRule(utc_start="22:00", utc_end="06:30", prompt="0.0000001000000000000000000001"),
    PriceRule(from_prompt_tokens=500, utc_start="06:30", utc_end="07:00", image="0.02"),
)
PRICES = {
    "one": (Pricing("0.00000123", "0.0000045", "0.01", "0.0001", "0.0000007"), RULES),
    "other": (Pricing("0.000003", "0.000009"), ()),
}


def calls(count: int, seed: int = 0) -> Iterator[tuple[Any, ...]]:
    draw = random.Random(seed)
    for number in range(count):
        prompt = draw.choice([draw.randrange(600), 1_999, 2_000, draw.randrange(20_000)])
        moment = BEGAN + timedelta(seconds=number * 7 % 604_800)
        name = draw.choice(("one", "one", "other"))
        counted = prompt, draw.randrange(prompt + 1), draw.randrange(900), draw.randrange(2)
        yield (moment, name, "base", *counted, Decimal(draw.randrange(10_000)).scaleb(-7), 0, "", "", number)


def plain(given: list[tuple[Any, ...]]) -> dict[str, Decimal]:
    """Each call at the prices that `cost` and the rules give it, added up."""
    found = dict.fromkeys(PRICES, Decimal(0))
    for moment, name, _, prompt, cached, completion, images, *_ in given:
        pricing, rules = PRICES[name]
        one = cost(Usage(prompt, completion, cached, images), at(pricing, rules, moment))
        found[name] = EXACT.add(found[name], one)
    return found


TARIFFS = {name: Tariff(*given) for name, given in PRICES.items()}


def test_the_sum_is_that_of_each_call() -> None:
    given = [*calls(20_000)]
    found = reprice(given, TARIFFS)
    assert {one.model: one.other_cost for one in found.models} == plain(given)
    assert found.cost == sum(call[7] for call in given)
    assert found.calls == 20_000


@pytest.mark.slow
def test_many_calls_are_exact() -> None:
    """It keeps no call: the calls are generated, and the reference reads the same ones again, in parts."""
    found = reprice(calls(100_000, 5), TARIFFS)
    sums = dict.fromkeys(PRICES, Decimal(0))
    part: list[tuple[Any, ...]] = []
    for call in calls(100_000, 5):
        part.append(call)
        if len(part) == 50_000:
            sums = {name: EXACT.add(sums[name], one) for name, one in plain(part).items()}
            part = []
    assert {one.model: one.other_cost for one in found.models} == sums
    assert found.calls == 100_000


@pytest.mark.parametrize(("minute", "prompt"), [(0, 0), (389, 1_999), (390, 2_000), (419, 8_000), (1319, 1), (1320, 1)])
def test_a_tariff_is_what_the_rules_say(minute: int, prompt: int) -> None:
    pricing, rules = PRICES["one"]
    moment = BEGAN + timedelta(minutes=minute)
    assert TARIFFS["one"].at(minute, prompt) == at(pricing, rules, moment).of(prompt)


def test_calls_may_be_those_of_another_model() -> None:
    given = [call for call in calls(500) if call[1] == "one"]
    found = reprice(given, TARIFFS, "other")
    prompt, completion = sum(call[3] - call[4] for call in given), sum(call[5] for call in given)
    assert found.other_cost == prompt * Decimal("0.000003") + completion * Decimal("0.000009")
    assert found.models[0].model == "one"


def test_a_model_without_another_price_is_in_no_comparison() -> None:
    found = reprice(calls(300), {"one": TARIFFS["one"]})
    assert [(one.model, one.priced) for one in found.models] == [("one", True), ("other", False)]
    assert (found.calls, found.unpriced) == (found.models[0].calls, found.models[1].calls)
    assert found.cost == found.models[0].cost


def test_a_base_model_and_a_star_give_prices_too() -> None:
    assert reprice(calls(50), {"base": TARIFFS["one"]}).unpriced == 0
    assert reprice(calls(50), {"*": TARIFFS["one"]}).unpriced == 0


def test_training_is_no_call() -> None:
    entry = (BEGAN, "one", "base", 0, 0, 0, 0, Decimal(3), 1000, "", "", 1)
    assert reprice([entry], TARIFFS).models == ()


@pytest.mark.parametrize(
    ("prices", "place", "says"),
    [
        ("0.1", "prices", "must be a mapping of models to prices"),
        ({"": Pricing()}, "prices", "must have names of models"),
        ({"one": "0.1"}, "prices.one", "must be a Pricing"),
        ({"one": {"promt": "0.1"}}, "prices.one.promt", "is not known"),
        ({"one": {"prompt": 0.1}}, "prices.one", "must be an exact number"),
        ({"one": {"prompt": "-1"}}, "prices.one.prompt", "must be at least 0"),
        ({"one": {"rules": 3}}, "prices.one.rules", "must be a list of rules"),
        ({"one": {"rules": [3]}}, "prices.one.rules.0", "must be a rule"),
        ({"one": {"rules": [{"prompt": "1"}]}}, "prices.one.rules", "must depend on"),
    ],
)
def test_other_prices_are_checked(prices: Any, place: str, says: str) -> None:
    with pytest.raises(InvalidInput) as wrong:
        plain_prices(prices)
    assert says in str(wrong.value)
    assert ".".join(map(str, wrong.value.problems[0].loc)).startswith(place)


def booked(platform: Platform, count: int, entity: str = "local") -> list[LedgerEntry]:
    entries = []
    for number, call in enumerate(calls(count)):
        moment, name, base, prompt, cached, completion, images, paid, *_ = call
        of = f"{entity}-{number:06}", entity, "help" if number % 2 else "", "key", name, base, None
        entries.append(LedgerEntry(*of, prompt, cached, completion, images, False, paid, moment))
    platform._runtime.store.transact(lambda tx: [tx.add(one) for one in entries] and None)
    return entries


def test_calls_are_read_from_the_ledger_by_their_time_and_place() -> None:
    with open_platform() as platform:
        entries, runtime = booked(platform, 5_000), platform._runtime
        booked(platform, 10, "acme")
        host = platform._principal
        assert len([*ledger_calls(runtime, host, "local", None, None, None)]) == 5_000
        since, until = entries[100].created_at, entries[4_000].created_at
        read = [*ledger_calls(runtime, host, "local", None, since, until)]
        assert [call[0] for call in read] == [one.created_at for one in entries[100:4_000]]
        assert len([*ledger_calls(runtime, host, "local", "help", None, None)]) == 2_500
        some = Principal("ann", "local", Scope("local", frozenset({"help"})), "another key")
        assert {call[9] for call in ledger_calls(runtime, some, "local", None, None, None)} == {"help"}


def test_the_catalogue_gives_prices_with_the_rules_of_routers(platform: Platform) -> None:
    platform.routers.set("echo", [{"from_prompt_tokens": 10, "prompt": "0.5"}])
    tariff = catalogue_tariffs(platform._runtime, platform._principal)["echo"]
    assert tariff.at(0, 10).prompt == Decimal("0.5")
    assert tariff.at(0, 9).prompt == platform.catalogue.get("echo").pricing.prompt


def test_prices_are_the_same_as_json_data() -> None:
    given = {name: {**pricing.texts, "rules": rules} for name, (pricing, rules) in PRICES.items()}
    kept = loads(dumps(plain_prices(given)))
    found = reprice(calls(5_000), tariffs_of(kept))
    assert found == reprice(calls(5_000), TARIFFS)


def test_entries_of_a_catalogue_are_prices(platform: Platform) -> None:
    entry = platform.catalogue.get("echo")
    assert tariffs_of(plain_prices([entry]))["echo"].at(0, 5) == entry.pricing
