"""What calls would have cost at other prices, exactly.

What a call costs is a sum of tokens times prices, and which prices hold depends on its model, the length of its prompt
and the minute in which it was booked. So the tokens of all calls with the same prices are added up, as whole numbers,
and multiplied once: the result is the sum of what each call costs, to the last digit, whatever their order.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any

import attrs

from modelyard.domain.catalogue import PRICE_RULE, CatalogueEntry, Pricing, is_price
from modelyard.domain.identity import Principal
from modelyard.domain.usage import EXACT, LedgerEntry
from modelyard.errors import InvalidInput, located_at, nearest
from modelyard.parts.routers.prices import MINUTES, PriceRule, RuledPricing, check_rules
from modelyard.parts.routers.service import Routers
from modelyard.platform.catalogue.service import Catalogue
from modelyard.platform.paging import MANY
from modelyard.platform.runtime import Runtime

ANY = "*"
"""The name under which a mapping has the prices of every model that it does not name."""

Prices = Mapping[str, Pricing | Mapping[str, Any]] | Iterable[CatalogueEntry]
"""Other prices: by the names of models, as a `Pricing` or its fields in USD and the `rules` of `platform.routers`; or
entries of a catalogue."""

_COLUMNS = (
    "created_at",
    "model",
    "base_model",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "images",
    "cost",
    "trained_tokens",
    "project",
    "key_id",
    "seq",
)
_FIELDS = tuple(field.name for field in attrs.fields(Pricing))

Call = tuple[Any, ...]
"""The columns of a call in the ledger."""


class Tariff:
    """The prices of one model at any minute of a day and for any length of a prompt."""

    def __init__(self, pricing: Pricing, rules: Sequence[PriceRule] = ()) -> None:
        day: list[tuple[int, ...]] = [()] * MINUTES
        if rules:
            day = [tuple(at for at, rule in enumerate(rules) if rule.holds_at(minute)) for minute in range(MINUTES)]
        steps = {holding: _steps(pricing, [rules[place] for place in holding]) for holding in {*day}}
        self._day = [steps[holding] for holding in day]

    def at(self, minute: int, prompt_tokens: int) -> Pricing:
        """Return the prices that hold in a minute of a day, in UTC, for a prompt of so many tokens."""
        lengths, prices = self._day[minute]
        return prices[bisect_right(lengths, prompt_tokens)]


Steps = tuple[list[int], list[Pricing]]
"""The lengths of prompts from which other prices hold, and the prices below the first and from each."""


def _steps(pricing: Pricing, rules: Sequence[PriceRule]) -> Steps:
    lengths = sorted({rule.from_prompt_tokens for rule in rules})
    of = {name: getattr(pricing, name) for name in _FIELDS}
    ruled = RuledPricing(**of, rules=tuple(rules))
    return lengths, [ruled.of(length) for length in (-1, *lengths)]


@attrs.frozen
class RepricedModel:
    """The calls of one model: what they cost, and what they would have cost, in USD. `priced` is whether the other
    prices have the model; if not, `cost` is what they cost, and they are in no comparison."""

    model: str
    calls: int
    cost: Decimal
    other_cost: Decimal
    priced: bool = True


@attrs.frozen
class Repriced:
    """What calls cost, and what they would have cost at other prices, in USD, by model."""

    models: tuple[RepricedModel, ...]

    def _sum(self, name: str, priced: bool = True) -> Decimal:
        total = Decimal(0)
        for one in self.models:
            if one.priced is priced:
                total = EXACT.add(total, getattr(one, name))
        return total

    @property
    def calls(self) -> int:
        """The calls that both prices have."""
        return sum(one.calls for one in self.models if one.priced)

    @property
    def cost(self) -> Decimal:
        """What these calls have cost, in USD."""
        return self._sum("cost")

    @property
    def other_cost(self) -> Decimal:
        """What they would have cost, in USD."""
        return self._sum("other_cost")

    @property
    def unpriced(self) -> int:
        """The calls of models that the other prices do not have."""
        return sum(one.calls for one in self.models if not one.priced)


def reprice(calls: Iterable[Call], tariffs: Mapping[str, Tariff], model: str | None = None) -> Repriced:
    """Return what calls would have cost, all of them as calls of one `model` if it is named."""
    sums: dict[tuple[str, int], list[Any]] = {}
    costs: dict[str, list[Any]] = {}
    for created_at, name, base, prompt, cached, completion, images, cost, trained, *_ in calls:
        if trained:
            continue
        own = costs.get(name)
        if own is None:
            wanted = (name, base, ANY) if model is None else (model, ANY)
            tariff = next((tariffs[one] for one in wanted if one in tariffs), None)
            own = costs[name] = [0, Decimal(0), tariff]
        own[0] += 1
        own[1] = EXACT.add(own[1], cost)
        if own[2] is None:
            continue
        utc = created_at if created_at.tzinfo is UTC else created_at.astimezone(UTC)
        pricing = own[2].at(utc.hour * 60 + utc.minute, prompt)
        counted = sums.get((name, id(pricing)))
        if counted is None:
            counted = sums[name, id(pricing)] = [pricing, 0, 0, 0, 0, 0]
        counted[1] += 1
        counted[2] += prompt - cached
        counted[3] += cached
        counted[4] += completion
        counted[5] += images
    found = dict.fromkeys(costs, Decimal(0))
    for (name, _), (pricing, *counts) in sums.items():
        kinds = pricing.request, pricing.prompt, pricing.input_cache_read, pricing.completion, pricing.image
        for price, count in zip(kinds, counts, strict=True):
            found[name] = EXACT.fma(price, Decimal(count), found[name])
    lines = [
        RepricedModel(name, count, cost, found[name], priced=tariff is not None)
        for name, (count, cost, tariff) in sorted(costs.items())
    ]
    return Repriced(tuple(lines))


def ledger_calls(
    runtime: Runtime,
    principal: Principal,
    entity: str,
    project: str | None,
    since: datetime | None,
    until: datetime | None,
) -> Iterator[Call]:
    """Yield the calls of an entity that the principal may see, the oldest first, each batch from its own snapshot."""
    after: Any = None if since is None else (since, 0)
    projects = principal.scope.projects
    while True:
        batch = runtime.store.read(partial(_batch, entity, after))
        for row in batch:
            if until is not None and row[0] >= until:
                return
            place, key = row[9], row[10]
            seen = projects is None or place in projects or (not place and key == principal.key_id)
            if seen and (project is None or place == project):
                yield row
        if len(batch) < MANY:
            return
        after = batch[-1][0], batch[-1][11]


def _batch(entity: str, after: Any, snapshot: Any) -> list[Call]:
    found: list[Call] = snapshot.select(LedgerEntry, _COLUMNS, "by_time", entity, after=after, limit=MANY)
    return found


# ---- the prices that are given


def catalogue_tariffs(runtime: Runtime, principal: Principal) -> Mapping[str, Tariff]:
    """Return the prices of the catalogue of now, with the rules of routers."""
    routers = Routers(runtime, principal)
    entries = Catalogue(runtime, principal).list()
    return {entry.id: Tariff(entry.pricing, routers.get(entry.id).rules) for entry in entries}


def tariffs_of(prices: Mapping[str, Any]) -> Mapping[str, Tariff]:
    """Return prices that are given as JSON data."""
    return {name: Tariff(*_read(name, given)) for name, given in prices.items()}


def plain_prices(prices: Prices) -> Mapping[str, Any]:
    """Return other prices as JSON data, by the names of models. Raises `InvalidInput`."""
    if not isinstance(prices, Mapping):
        given: Any = prices
        found: list[Any] = [*given] if isinstance(given, Iterable) and not isinstance(given, str) else [None]
        if not all(isinstance(one, CatalogueEntry) for one in found):
            raise InvalidInput.at("prices", msg="must be a mapping of models to prices, or entries of a catalogue")
        prices = {one.id: one.pricing for one in found}
    for name in prices:
        if not isinstance(name, str) or not 0 < len(name) <= 512:
            raise InvalidInput.at("prices", msg="must have names of models as keys")
    read = {name: _read(name, given) for name, given in prices.items()}
    return {
        name: {**pricing.texts, "rules": [rule.as_data() for rule in rules]} for name, (pricing, rules) in read.items()
    }


def _read(name: str, given: Pricing | Mapping[str, Any]) -> tuple[Pricing, Sequence[PriceRule]]:
    if not isinstance(given, Pricing | Mapping):
        raise InvalidInput.at("prices", name, msg="must be a Pricing, or its fields, such as {'prompt': '0.000001'}")
    fields = {} if isinstance(given, Pricing) else {**given}
    rules = fields.pop("rules", ())
    for field in fields:
        if field not in _FIELDS:
            raise InvalidInput.at("prices", name, str(field), msg=f"is not known{nearest(str(field), _FIELDS)}")
    if isinstance(rules, str | Mapping) or not isinstance(rules, Iterable):
        raise InvalidInput.at("prices", name, "rules", msg="must be a list of rules")
    with located_at("prices", name):
        pricing = given if isinstance(given, Pricing) else Pricing(**fields)
        for field in _FIELDS:
            if not is_price(getattr(pricing, field)):
                raise InvalidInput.at(field, msg=PRICE_RULE)
        return pricing, check_rules(rules)
