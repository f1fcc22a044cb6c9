"""Declarations of records, from which every store builds its tables and indexes, and pages of listings."""

import copyreg
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from importlib import import_module
from json.scanner import make_scanner
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar

import attrs

from modelyard.errors import InvalidInput

KEY = "key"
"""The name under which a record's own key can be looked up, next to its unique keys."""

FOR_EVER = datetime(9999, 1, 1, tzinfo=UTC)
"""When something expires that does not."""

KEPT = "kept"
"""How a record's texts age that stay until they are deleted; see `Record`."""

MAX_DEPTH = 100
"""Levels of containers in a value that is kept, below the first; far below the interpreter's recursion limit."""

EMPTY: Mapping[Any, Any] = MappingProxyType({})
"""An empty mapping, for defaults."""


def _read_only(value: Any) -> Any:
    return tuple(map(_read_only, value)) if type(value) is list else value


def _members(members: dict[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType({name: _read_only(value) for name, value in members.items()})


_decode = make_scanner(json.JSONDecoder(object_hook=_members))  # type: ignore[arg-type]  # a decoder, as json does


def read_frozen(text: str) -> Any:
    """Return the value of a JSON text that begins and ends without a space, with read-only mappings and tuples. Raises
    `ValueError` for any other string."""
    try:
        value, end = _decode(text, 0)
    except StopIteration as at:
        raise ValueError(f"there is no JSON value at character {at.value}") from None
    if end != len(text):
        raise ValueError(f"there is more text after the JSON value, at character {end}")
    return _read_only(value)


class WrittenMapping(Mapping[str, Any]):
    """A read-only mapping by its JSON text, which is read when somebody looks into it."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def _members(self) -> Mapping[str, Any]:
        return read_frozen(self.text)  # type: ignore[no-any-return]

    def __getitem__(self, name: str) -> Any:
        return self._members[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __repr__(self) -> str:
        return repr(self._members)


_READ_ONLY = frozenset({MappingProxyType, WrittenMapping})


def frozen_mapping(value: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return a read-only copy of the mapping: stores share objects, so nothing inside a record may change."""
    return value if type(value) in _READ_ONLY else MappingProxyType(dict(value))


def _parts(mapping: MappingProxyType[Any, Any]) -> tuple[Any, ...]:
    return frozen_mapping, (dict(mapping),)


copyreg.pickle(MappingProxyType, _parts)  # Python itself can neither pickle nor deepcopy one

_LONGEST_TEXT = 2000


def truncate_for_storage(text: str) -> str:
    """Return a string that every store can keep: bounded, and with NUL and lone surrogates escaped."""
    return text[:_LONGEST_TEXT].replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


def digests_of(files: Iterable[Mapping[str, Any]]) -> dict[str, str | None]:
    """Return the digests of artifacts, each `{"artifact", "digest"}`, by their names."""
    return {file["artifact"]: file.get("digest") for file in files}


def sequence_field() -> int:
    """Declare the field that holds a record's number in the order of appearance; see `Record`.

    It is not part of the record's value: records that differ in it alone are equal.
    """
    return attrs.field(default=0, eq=False, repr=False)


def in_notebook(value: object) -> str:
    """Return the HTML by which a notebook shows a value."""
    return import_module("modelyard.report").value_notebook(value)  # type: ignore[no-any-return]


def first_lines(name: str, items: Sequence[object], more: bool = False) -> str:
    """Return the `repr` of a list: a line for each of its first items, cut."""
    lines = [f"  {cut(repr(item))}" for item in items[:REPR_ITEMS]] + ["  and more"] * (more or len(items) > REPR_ITEMS)
    return "\n".join([f"<{name}", *lines]) + ">" if lines else f"<{name} of nothing>"


def cut(text: str) -> str:
    return text if len(text) <= REPR_WIDTH else f"{text[:REPR_WIDTH]}..."


def brief(value: Any) -> str:
    """Return the `repr` of a frozen value; fields with `repr=False` are left out while they have their default."""
    at = [at for at in attrs.fields(type(value)) if at.repr or (at.eq and getattr(value, at.name) != at.default)]
    return f"{type(value).__name__}({', '.join(f'{one.name}={getattr(value, one.name)!r}' for one in at)})"


@attrs.frozen
class Index:
    """A listing order: records with equal values of `where`, sorted by `order`.

    What makes the order total is appended to it: the record's sequence if it has one, else its key. A store may keep
    the fields of `also` in the index, so that a `select` of indexed fields need not read the records.
    """

    where: tuple[str, ...]
    order: tuple[str, ...] = ()
    also: tuple[str, ...] = ()


@attrs.frozen(eq=False)
class Record:
    """A kind of record: its class, table, primary key, unique keys and indexes. Column names are checked at import.

    `sequence` names the last field of the class, an integer that the store sets when it adds a record: a number greater
    than that of every record of the class that any reader can have seen, and never used again. So a reader who
    continues after the last record that it has seen misses none. `replace` keeps the number.

    `settings` names fields that decide how requests are answered, such as the price of a catalogue entry. Stores count
    the commits that add or remove such a record or change one of these fields (`Store.settings_version`).

    `totals` is a class with `sums`, and the function that returns what one record adds to them: a store adds that to
    the total with its key, or keeps it as the first, when it adds the record. Whoever sees the record sees it in its
    total. A record that is removed stays in its total. A field that both classes have is the same in both.

    `sums` names the integers and amounts (`Decimal`) of a total that are added up. The class adds these fields of two
    records of one key with `+`, exactly, and leaves the others. They are in no key and no index.

    `domain` is the kind of domain to which each record belongs, and the field that names it: ("job", "job_id"). A step
    may declare in which domains it stays (`modelyard.protocols.DomainStep`).

    `months` names the first field of the key, a UUIDv7 that every unique key contains: a store may keep the records of
    each month apart, by the time in that id, and drop those of an old month at once.

    `gathered` records are added one by one, often, and hardly ever replaced or removed: a store may keep the newest
    apart, and put many into its indexes at once. Their key is the first fields of the class.

    `artifacts` returns the names of the artifacts that belong to a record alone, or a mapping of them to their SHA-256
    digests in hex. They are removed with the record, and an artifact that no record names is an orphan. Such a class
    needs an index over all of its records.

    `erased_with` maps classes to a lookup of this one by the id of theirs: an index, or `KEY` for a key that is that
    id. The record is removed together with that owner.

    `texts` says that the records hold what people wrote or models answered. It names the field by whose time they age:
    older ones may be removed (`platform.keep.texts`), found by an index over it, each with its artifacts and what is
    erased with it. `KEPT` are texts that stay until they, or their owner, are deleted by a rule of their own.

    A declaration equals only itself, so that values computed from it can be cached by it.
    """

    cls: type
    table: str
    key: tuple[str, ...]
    unique: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)
    indexes: Mapping[str, Index] = attrs.field(factory=dict)
    sequence: str | None = None
    settings: tuple[str, ...] = ()
    totals: tuple[type, Callable[[Any], Any]] | None = None
    sums: tuple[str, ...] = ()
    domain: tuple[str, str] | None = None
    months: str | None = None
    gathered: bool = False
    artifacts: Callable[[Any], Iterable[str]] | None = None
    erased_with: Mapping[type, str] = EMPTY
    texts: str | None = None

    def __attrs_post_init__(self) -> None:
        self._check_names()
        self._check_sums()
        self._check_months()
        self._check_gathered()
        self._check_owned()
        _DECLARED.setdefault(self.cls, self)

    def _check_names(self) -> None:
        """Raise `TypeError` for a name that stands for no field, or for another one."""
        fields = attrs.fields(self.cls)
        if self.sequence is not None and self.sequence != fields[-1].name:
            raise TypeError(f"the sequence of {self.cls.__name__} must be its last field, {fields[-1].name!r}")
        if KEY in self.unique:
            raise TypeError(f"{self.cls.__name__} has a unique key named {KEY!r}, which stands for its own key")
        unknown = {*self._used, *self.sums} - {field.name for field in fields}
        if unknown:
            raise TypeError(f"{self.cls.__name__} has no field {sorted(unknown)}")

    @property
    def total_index(self) -> str | None:
        """An index over all records, if there is one."""
        return next((name for name, index in self.indexes.items() if not index.where), None)

    @property
    def age_index(self) -> str | None:
        """The index over all records by the field by which their texts age, if they do."""
        return next((name for name, i in self.indexes.items() if not i.where and i.order[:1] == (self.texts,)), None)

    def key_of(self, record: Any) -> tuple[Any, ...]:
        """Return the key of a record."""
        return tuple(getattr(record, column) for column in self.key)

    @property
    def _used(self) -> set[str]:
        """The fields that keys, indexes, settings and the domain name."""
        used = {*self.key, *self.settings, *([self.domain[1]] if self.domain else [])}
        for index in self.indexes.values():
            used |= {*index.where, *index.order, *index.also}
        return used.union(*self.unique.values())

    def _check_sums(self) -> None:
        if self.sums and (self.sequence or self.unique or self.settings or not self._used.isdisjoint(self.sums)):
            raise TypeError(f"{self.cls.__name__} has sums, so that it can have no sequence, unique key or settings")

    def _check_months(self) -> None:
        if self.months and not all(self.months in columns for columns in (self.key[:1], *self.unique.values())):
            raise TypeError(f"{self.cls.__name__} is kept by months: {self.months!r} must lead its key, and be in all")

    def _check_gathered(self) -> None:
        if self.totals and not self.gathered:
            raise TypeError(f"{self.cls.__name__} has totals, so it must be gathered")
        if self.gathered and (self.unique or not self.sequence or self.settings):
            raise TypeError(f"{self.cls.__name__} is gathered, so it needs a sequence, and no unique key or settings")
        first = tuple(field.name for field in attrs.fields(self.cls)[: len(self.key)])
        if self.gathered and self.key != first:
            raise TypeError(f"{self.cls.__name__} is gathered, so its key must be its first fields")

    def _check_owned(self) -> None:
        if self.artifacts and self.total_index is None:
            raise TypeError(f"{self.cls.__name__} names artifacts, so it needs an index over all records")
        lacking = {*self.erased_with.values()} - {*self.indexes, KEY}
        if self.texts not in (None, KEPT, *(field.name for field in attrs.fields(self.cls))):
            raise TypeError(f"{self.cls.__name__} has no field {self.texts!r} by which its texts age")
        if self.texts not in (None, KEPT) and self.age_index is None:
            raise TypeError(f"{self.cls.__name__} has texts that age, so it needs an index by {self.texts!r} over all")
        if lacking:
            raise TypeError(f"{self.cls.__name__} is erased by {sorted(lacking)}, which is no index of it")

    def order_of(self, index: str) -> tuple[str, ...]:
        """Return the columns of a cursor into `index`: its order, and what makes it total."""
        declared = self.indexes[index]
        rest = tuple(k for k in self.key if k not in declared.order and k not in declared.where)
        return declared.order + ((self.sequence,) if rest and self.sequence else rest)

    def cursor(self, index: str, record: Any) -> tuple[Any, ...]:
        """Return what `page(..., after=)` takes to continue after `record`."""
        return tuple(getattr(record, column) for column in self.order_of(index))


_DECLARED: dict[type, Record] = {}


def declaration_of(cls: type) -> Record:
    """Return the declaration of a class, the first if there are several."""
    return _DECLARED[cls]


def by_class(records: Sequence[Record]) -> Mapping[type, Record]:
    """Return the declarations by the class that they declare."""
    return MappingProxyType({record.cls: record for record in records})


T = TypeVar("T")
S = TypeVar("S")

Order = Literal["asc", "desc"]

DEFAULT_LIMIT = 20
REPR_ITEMS, REPR_WIDTH = 10, 120
MAX_LIMIT = 1000


@attrs.frozen
class Page(Generic[T]):
    """Some items of a listing, in order. To get the next page, pass the id of the last item as `after`.

    >>> Page.cut([1, 2, 3], limit=2)
    Page(items=(1, 2), has_more=True)
    """

    items: tuple[T, ...]
    has_more: bool

    @classmethod
    def cut(cls, found: Sequence[T], limit: int) -> "Page[T]":
        """Make a page of `limit` items from a query for `limit` + 1."""
        return cls(tuple(found[:limit]), len(found) > limit)

    def map(self, change: Callable[[T], S]) -> "Page[S]":
        """Return the page with `change` applied to every item."""
        return Page(tuple(map(change, self.items)), self.has_more)

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


def check_limit(limit: int) -> int:
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidInput.at("limit", msg=f"must be 1 to {MAX_LIMIT}")
    return limit
