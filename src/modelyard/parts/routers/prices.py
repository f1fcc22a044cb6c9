"""Prices that depend on how long a prompt is, and on the hour."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, ClassVar

import attrs

from modelyard.domain.catalogue import PRICE_RULE, Pricing, is_price
from modelyard.errors import InvalidInput, Problem, nearest

KINDS = ("prompt", "input_cache_read", "completion", "image")
"""The prices that a rule may set."""

MOST_RULES = 32
MINUTES = 24 * 60
_MOST_TOKENS = 2**53


def _exact(value: Any) -> Any:
    return Decimal(value) if type(value) in (str, int) else value


@attrs.frozen
class PriceRule:
    """Other prices in USD for requests of which all of this holds: the prompt has at least `from_prompt_tokens`, and
    the request arrived from `utc_start` until before `utc_end`, such as "22:00" and "06:00". A price that is None stays
    as it is."""

    from_prompt_tokens: int = 0
    utc_start: str | None = None
    utc_end: str | None = None
    prompt: Decimal | None = attrs.field(default=None, converter=_exact)
    input_cache_read: Decimal | None = attrs.field(default=None, converter=_exact)
    completion: Decimal | None = attrs.field(default=None, converter=_exact)
    image: Decimal | None = attrs.field(default=None, converter=_exact)

    @property
    def prices(self) -> Mapping[str, Decimal]:
        """The prices that it sets."""
        named = {kind: getattr(self, kind) for kind in KINDS}
        return {kind: price for kind, price in named.items() if price is not None}

    @property
    def window(self) -> tuple[int, int] | None:
        """The minutes of a day in which it begins and ends to hold, None for the whole day."""
        return (
            None if self.utc_start is None or self.utc_end is None else (_minute(self.utc_start), _minute(self.utc_end))
        )

    def holds_at(self, minute: int) -> bool:
        """Return whether it may hold in this minute of a day, in UTC."""
        if self.window is None:
            return True
        start, end = self.window
        return start <= minute < end if start < end else minute >= start or minute < end

    def as_data(self) -> Mapping[str, Any]:
        """Return it as JSON data."""
        of = {name: getattr(self, name) for name in ("from_prompt_tokens", "utc_start", "utc_end")}
        return {name: one for name, one in of.items() if one} | {kind: f"{one:f}" for kind, one in self.prices.items()}


def _minute(text: str) -> int:
    hour, _, minute = text.partition(":")
    return int(hour) * 60 + int(minute)


@attrs.frozen
class RuledPricing(Pricing):
    """Prices with the `rules` that may hold at this time: later ones win, price by price."""

    rules: tuple[PriceRule, ...] = ()
    lasting: ClassVar[bool] = False

    def of(self, prompt_tokens: int) -> Pricing:
        """Return the prices that hold for a prompt of so many tokens."""
        named = {field.name: getattr(self, field.name) for field in attrs.fields(Pricing)}
        for rule in self.rules:
            if prompt_tokens >= rule.from_prompt_tokens:
                named |= rule.prices
        return Pricing(**named)

    def dearest(self) -> Pricing:
        """Return the highest price of each kind, of whatever rule."""
        plain = self.of(-1)
        highest = {
            kind: max([getattr(plain, kind), *(rule.prices[kind] for rule in self.rules if kind in rule.prices)])
            for kind in KINDS
        }
        return attrs.evolve(plain, **highest).dearest()


def at(pricing: Pricing, rules: Sequence[PriceRule], moment: datetime) -> Pricing:
    """Return prices with the rules that may hold at a time."""
    utc = moment.astimezone(UTC)
    holding = tuple(rule for rule in rules if rule.holds_at(utc.hour * 60 + utc.minute))
    named = {field.name: getattr(pricing, field.name) for field in attrs.fields(Pricing)}
    return RuledPricing(**named, rules=holding)


def check_rules(rules: Iterable[PriceRule | Mapping[str, Any]]) -> tuple[PriceRule, ...]:
    """Return rules, which may be given as their fields. Raises `InvalidInput` that names what is wrong with each."""
    found = tuple(one if isinstance(one, PriceRule) else _of_fields(at, one) for at, one in enumerate(rules))
    problems = [Problem(("rules", at, *place), msg) for at, rule in enumerate(found) for place, msg in _wrong(rule)]
    if len(found) > MOST_RULES:
        problems.append(Problem(("rules",), f"must be at most {MOST_RULES}"))
    if problems:
        raise InvalidInput(problems)
    return found


def _of_fields(at: int, fields: Mapping[str, Any]) -> PriceRule:
    if not isinstance(fields, Mapping):
        raise InvalidInput.at("rules", at, msg="must be a rule, such as {'from_prompt_tokens': 200001, 'prompt': '1'}")
    known = {field.name for field in attrs.fields(PriceRule)}
    for name in fields:
        if name not in known:
            raise InvalidInput.at("rules", at, name, msg=f"is not known{nearest(name, known)}")
    return PriceRule(**fields)


def _wrong(rule: PriceRule) -> Iterable[tuple[tuple[str, ...], str]]:
    tokens = rule.from_prompt_tokens
    if type(tokens) is not int or not 0 <= tokens <= _MOST_TOKENS:
        yield ("from_prompt_tokens",), "must be a whole number from 0 to 2^53"
    elif not tokens and rule.utc_start is None and rule.utc_end is None:
        yield (), "must depend on from_prompt_tokens, or on utc_start and utc_end"
    yield from _wrong_window(rule)
    if not rule.prices:
        yield (), f"must set one of {', '.join(KINDS)}"
    given: Mapping[str, Any] = rule.prices
    for kind, price in given.items():
        if not isinstance(price, Decimal):
            yield (kind,), "must be an exact number, a Decimal or a string such as '0.5'"
        elif not is_price(price):
            yield (kind,), PRICE_RULE


def _wrong_window(rule: PriceRule) -> Iterable[tuple[tuple[str, ...], str]]:
    given = {"utc_start": rule.utc_start, "utc_end": rule.utc_end}
    for name, text in given.items():
        if (text is None) is not (rule.utc_start is None):
            yield (name,), "utc_start and utc_end belong together"
        elif text is not None and not _is_time(text):
            yield (name,), "must be a time of day in UTC such as 08:00"
    if rule.utc_start is not None and rule.utc_start == rule.utc_end:
        yield ("utc_end",), "must differ from utc_start"


def _is_time(text: object) -> bool:
    if not isinstance(text, str) or len(text) != 5 or text[2] != ":" or not (text[:2] + text[3:]).isascii():
        return False
    return text[:2].isdigit() and text[3:].isdigit() and text[:2] < "24" and text[3:] < "60"
