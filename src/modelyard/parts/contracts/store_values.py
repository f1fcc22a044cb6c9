"""Records for testing stores, and hypothesis strategies for their values, extreme ones included."""

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any

import attrs
from hypothesis import strategies as st

from modelyard.domain.record import Index, Record, frozen_mapping, sequence_field
from modelyard.domain.usage import EXACT


class Colour(Enum):
    RED = "red"
    GREEN = "green"
    BLUE = "blue"


@attrs.frozen
class Specimen:
    """One field of every type that a record may have, and an optional one of each."""

    id: str
    text: str = ""
    number: int = 0
    ratio: float = 0.0
    flag: bool = False
    colour: Colour = Colour.RED
    price: Decimal = Decimal(0)
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    blob: bytes = b""
    mapping: Mapping[str, Any] = attrs.field(factory=dict)
    names: tuple[str, ...] = ()
    numbers: tuple[float, ...] = ()
    maybe_text: str | None = None
    maybe_number: int | None = None
    maybe_ratio: float | None = None
    maybe_flag: bool | None = None
    maybe_colour: Colour | None = None
    maybe_price: Decimal | None = None
    maybe_at: datetime | None = None
    maybe_blob: bytes | None = None
    maybe_mapping: Mapping[str, Any] | None = None
    maybe_names: tuple[str, ...] | None = None


@attrs.frozen
class Item:
    """Something on a shelf: a key of two columns, a unique label, and indexes in which None occurs."""

    shelf: str
    number: int
    label: str | None = None
    rank: int | None = None
    colour: Colour = Colour.RED
    weight: float = 0.0


@attrs.frozen
class Counter:
    id: str
    value: int = 0


@attrs.frozen
class Tally:
    name: str
    day: str
    count: int = 0
    amount: Decimal = Decimal(0)

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.name, self.day, self.count + other.count, EXACT.add(self.amount, other.amount))


@attrs.frozen
class Sale:
    id: str
    name: str = "a"
    hour: int = 0
    amount: Decimal = Decimal(0)
    seq: int = sequence_field()


def tally_of(sale: Sale) -> Tally:
    return Tally(sale.name, f"day {sale.hour // 24}", 1, sale.amount)


@attrs.frozen
class Entry:
    id: str
    topic: str = "a"
    text: str = ""
    seq: int = sequence_field()


@attrs.frozen
class Task:
    id: str
    state: str = "open"
    by: str = ""
    seq: int = sequence_field()


@attrs.frozen
class Setting:
    id: str
    value: int = 0
    note: str = ""


ITEM = Record(
    Item,
    "items",
    key=("shelf", "number"),
    unique={"label": ("shelf", "label")},
    indexes={
        "by_shelf": Index(("shelf",)),
        "by_rank": Index(("shelf",), ("rank",)),
        "by_colour": Index(("colour",), ("weight", "label")),
        "by_label": Index((), ("label",)),
    },
)

CONTRACT_RECORDS: tuple[Record, ...] = (
    Record(Specimen, "specimens", key=("id",), indexes={"by_colour": Index(("maybe_colour",), ("maybe_at", "colour"))}),
    ITEM,
    Record(Counter, "counters", key=("id",), domain=("counter", "id")),
    Record(
        Sale,
        "sales",
        key=("id",),
        indexes={"all": Index(())},
        sequence="seq",
        totals=(Tally, tally_of),
        domain=("tally", "name"),
        gathered=True,
    ),
    Record(
        Tally,
        "tallies",
        key=("name", "day"),
        indexes={"by_day": Index(("day",))},
        sums=("count", "amount"),
        domain=("tally", "name"),
    ),
    Record(
        Entry,
        "entries",
        key=("id",),
        indexes={"all": Index(()), "by_topic": Index(("topic",)), "by_text": Index(("topic",), ("text",))},
        sequence="seq",
        domain=("topic", "topic"),
        months="id",
        gathered=True,
    ),
    Record(Setting, "settings", key=("id",), settings=("value",)),
    Record(Task, "tasks", key=("id",), indexes={"by_state": Index(("state",))}, sequence="seq", domain=("task", "id")),
)


def texts(**limits: Any) -> st.SearchStrategy[str]:
    return st.text(st.characters(codec="utf-8"), **limits)


integers: st.SearchStrategy[int] = st.integers(-(2**63), 2**63 - 1)
floats: st.SearchStrategy[float] = st.floats(allow_nan=False)
decimals: st.SearchStrategy[Decimal] = st.decimals(allow_nan=False, allow_infinity=False)
times: st.SearchStrategy[datetime] = st.datetimes(timezones=st.just(UTC))
scalars: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | integers | st.floats(allow_nan=False, allow_infinity=False) | texts()
)
json_values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.dictionaries(texts(max_size=8), inner, max_size=3),
    max_leaves=8,
)
dictionaries: st.SearchStrategy[dict[str, Any]] = st.dictionaries(texts(max_size=8), json_values | scalars, max_size=4)
mappings: st.SearchStrategy[Mapping[str, Any]] = dictionaries | dictionaries.map(frozen_mapping)
names: st.SearchStrategy[tuple[str, ...]] = st.lists(texts(max_size=8), max_size=3).map(tuple)

specimens: st.SearchStrategy[Specimen] = st.builds(
    Specimen,
    id=texts(min_size=1),
    text=texts(),
    number=integers,
    ratio=floats,
    flag=st.booleans(),
    colour=st.sampled_from(Colour),
    price=decimals,
    at=times,
    blob=st.binary(),
    mapping=mappings,
    names=names,
    numbers=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3).map(tuple),
    maybe_text=st.none() | texts(),
    maybe_number=st.none() | integers,
    maybe_ratio=st.none() | floats,
    maybe_flag=st.none() | st.booleans(),
    maybe_colour=st.none() | st.sampled_from(Colour),
    maybe_price=st.none() | decimals,
    maybe_at=st.none() | times,
    maybe_blob=st.none() | st.binary(),
    maybe_mapping=st.none() | mappings,
    maybe_names=st.none() | names,
)

shelves: st.SearchStrategy[str] = st.sampled_from(["", "a", "é", "\U0001f600", "\uffff"])
items: st.SearchStrategy[Item] = st.builds(
    Item,
    shelf=shelves,
    number=st.integers(-1, 2),
    label=st.none() | st.sampled_from(["", "x", "y", "\x00"]),
    rank=st.none() | st.integers(-1, 1),
    colour=st.sampled_from(Colour),
    weight=st.sampled_from([-1.5, 0.0, 2.0]),
)
"""An item; there are so few that collisions are frequent."""

UNKEEPABLE: tuple[Mapping[str, Any], ...] = (
    {"text": "\ud800"},
    {"text": None},
    {"text": 5},
    {"maybe_text": "a\udfffb"},
    {"number": 2**63},
    {"number": -(2**63) - 1},
    {"number": 1.5},
    {"number": True},
    {"maybe_number": "5"},
    {"ratio": float("nan")},
    {"ratio": 2**60 + 1},
    {"ratio": 10**400},
    {"flag": 1},
    {"colour": "red"},
    {"price": Decimal("NaN")},
    {"price": Decimal("Infinity")},
    {"price": 1.5},
    {"at": datetime(2026, 1, 1)},  # noqa: DTZ001 - a time without a zone, on purpose
    {"blob": "text"},
    {"mapping": {"a": float("nan")}},
    {"mapping": {"a": [float("inf")]}},
    {"mapping": {"a": {"b": 2**63}}},
    {"mapping": {1: "a"}},
    {"mapping": {"a": {None: 1}}},
    {"mapping": {"\ud800": 1}},
    {"mapping": {"a": ("\ud800",)}},
    {"mapping": {"a": {1, 2}}},
    {"mapping": {"a": Decimal(1)}},
    {"mapping": {"a": Colour.RED}},
    {"mapping": frozen_mapping({"a": float("nan")})},
    {"mapping": frozen_mapping({"a": float("-inf")})},
    {"mapping": frozen_mapping({"a": 2**63})},
    {"mapping": frozen_mapping({"a": "\ud800"})},
    {"mapping": frozen_mapping({"\ud800": 1.0})},
    {"mapping": frozen_mapping({1: "a"})},
    {"mapping": ()},
    {"names": ("\udc00",)},
    {"names": "abc"},
    {"numbers": (float("nan"),)},
)
"""Values of a specimen that a store must refuse, since it would lose or change them."""
