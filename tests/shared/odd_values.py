"""Values of a host that are no JSON data: some stand for JSON, as the json module writes them, the others do not."""

import enum
import json
from collections import ChainMap, Counter, OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy
import pytest
from hypothesis import strategies as st

from modelyard.errors import InvalidInput


class Name(str):
    def __str__(self) -> str:
        return "another name"

    __repr__ = __str__


class Count(int):
    def __str__(self) -> str:
        return "another count"

    __repr__ = __str__


class Share(float):
    def __str__(self) -> str:
        return "another share"

    __repr__ = __str__


class Level(enum.IntEnum):
    HIGH = 3


class Colour(enum.StrEnum):
    RED = "red"


class Old(str, enum.Enum):  # noqa: UP042 - as programs have it
    RED = "red"


class Plain(enum.Enum):
    RED = "red"


Point = namedtuple("Point", "x y")

_cyclic: dict[str, Any] = {}
_cyclic["self"] = _cyclic

STANDS_FOR_JSON: tuple[Any, ...] = (
    numpy.float64(0.5),
    Name("Ada"),
    Count(7),
    Share(0.25),
    Level.HIGH,
    Colour.RED,
    Old.RED,
    Point(1, numpy.float64(2.5)),
    {1: "one"},
    {1.5: "half", True: "yes", None: "none"},
    {Colour.RED: Level.HIGH},
    {Name("key"): {2: [Share(0.5)]}},
    {"a": 1, 2: "mixed"},
    OrderedDict(b=1, a=2),
    defaultdict(int, a=1),
    Counter("aab"),
    UserDict(a=Colour.RED),
    ChainMap({"a": 1}, {"b": Name("x")}),
    MappingProxyType({"a": {3: 4}}),
    (1, (2, [Count(3)])),
)
REFUSED: tuple[Any, ...] = (
    object(),
    {1, 2},
    b"bytes",
    range(3),
    Decimal("0.5"),
    Fraction(1, 2),
    1j,
    datetime(2026, 1, 1, tzinfo=UTC),
    Plain.RED,
    numpy.float32(0.5),
    numpy.int64(5),
    numpy.bool_(True),
    numpy.array([1.0]),
    numpy.float64("nan"),
    float("inf"),
    Share("-inf"),
    2**63,
    Count(2**63),
    "\ud800",
    Name("\ud800"),
    {(1, 2): "pair"},
    {1: "a", "1": "b"},
    {numpy.int64(1): 1},
    _cyclic,
    {"deep": {"er": [Decimal(1)]}},
)

odd_values = st.recursive(
    st.sampled_from((*STANDS_FOR_JSON, *REFUSED, "plain", 1, 0.5, True, None)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", 1, Colour.RED, Level.HIGH]), inner, max_size=3)
    ),
    max_leaves=4,
)


def as_data(value: Any) -> Any:
    """The JSON data that the json module writes for a value. Raises ValueError or TypeError."""

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a name comes twice")
        return dict(pairs)

    def mapping(value: Any) -> Any:
        if isinstance(value, Mapping):
            return dict(value)
        raise TypeError(type(value))

    def int64(text: str) -> int:
        if not -(2**63) <= int(text) < 2**63:
            raise ValueError(text)
        return int(text)

    text = json.dumps(value, allow_nan=False, default=mapping, ensure_ascii=False)
    text.encode()
    return json.loads(text, object_pairs_hook=members, parse_int=int64)


def is_its_json_or_refused(door: Callable[[Any], Any], value: Any) -> None:
    """Assert that what a door keeps of a value is what the json module writes for it, or that it is refused at its
    place."""
    try:
        wanted = as_data(value)
    except (TypeError, ValueError, RecursionError):
        with pytest.raises(InvalidInput) as caught:
            door(value)
        assert caught.value.problems[0].loc
    else:
        found = door(value)
        assert plain(found) == wanted
        assert is_data(found)


def is_data(value: Any) -> bool:
    """Whether a value has JSON's own types only, as a store returns them."""
    if isinstance(value, Mapping):
        return all(type(name) is str and is_data(member) for name, member in value.items())
    if isinstance(value, list | tuple):
        return type(value) in (list, tuple) and all(map(is_data, value))
    return type(value) in (str, int, float, bool, type(None))


def plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: plain(member) for name, member in value.items()}
    return [plain(member) for member in value] if isinstance(value, list | tuple) else value
