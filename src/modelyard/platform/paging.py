"""Listings of records in an index, with cursors that stay valid after their record is removed."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from heapq import merge
from itertools import islice
from typing import Any, TypeVar

from modelyard.domain.identity import Principal, check_name
from modelyard.domain.record import KEY, Order, declaration_of
from modelyard.errors import InvalidInput, Problem, nearest
from modelyard.platform.listing import BATCH, Cursor, Listing, accept_all, in_batches
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

R = TypeVar("R")
T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

MANY = 2000
MAX_WINDOW = 2**53
MAX_IDS = 1000


def get_or_none(snapshot: Snapshot, cls: type[R], *key: object) -> R | None:
    return snapshot.find(cls, KEY, *key)


def remove_if_present(tx: Tx, cls: type[Any], *key: object) -> None:
    if get_or_none(tx, cls, *key) is not None:
        tx.remove(cls, *key)


def iter_index(
    snapshot: Snapshot,
    cls: type[R],
    index: str,
    *where: object,
    after: Cursor | None = None,
    size: int = BATCH,
    descending: bool = False,
) -> Iterator[R]:
    """Yield every record of an index after a cursor, reading batches of `size`."""
    while True:
        batch = snapshot.page(cls, index, *where, after=after, limit=size, descending=descending)
        yield from batch
        if len(batch) < size:
            return
        after = cursor_at(cls, index, batch[-1])


def iter_index_live(
    runtime: Runtime,
    cls: type[R],
    index: str,
    *where: object,
    after: Cursor | None = None,
    size: int = BATCH,
    descending: bool = False,
) -> Iterator[R]:
    """Yield every record of an index after a cursor, reading each batch of `size` from another snapshot when it is
    needed. The record of the cursor need no longer exist."""
    while True:
        batch = runtime.store.read(partial(_batch, cls, index, where, after, size, descending))
        yield from batch
        if len(batch) < size:
            return
        after = cursor_at(cls, index, batch[-1])


def iter_columns(
    runtime: Runtime, cls: type[Any], columns: Sequence[str], index: str, *where: object
) -> Iterator[tuple[Any, ...]]:
    """Yield these columns of every record of an index, followed by those of its cursor, reading each batch from its own
    snapshot when it is needed.
    """
    order = declaration_of(cls).order_of(index)
    names = (*columns, *(name for name in order if name not in columns))
    places, cursor = [names.index(name) for name in order], None
    while True:
        batch = runtime.store.read(partial(_selected, cls, names, index, where, cursor))
        yield from batch
        if len(batch) < MANY:
            return
        cursor = tuple(batch[-1][at] for at in places)


def check_slice(limit: int | None, offset: int) -> None:
    values = {"limit": 0 if limit is None else limit, "offset": offset}
    problems = [
        Problem((name,), f"must be a whole number from 0 to {MAX_WINDOW}")
        for name, value in values.items()
        if not 0 <= value <= MAX_WINDOW
    ]
    if problems:
        raise InvalidInput(problems)


def unique_texts(name: str, given: Iterable[str]) -> Sequence[str]:
    """Return the texts that an argument has, which may be one. Raises `InvalidInput` for anything else."""
    found = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else (None,)
    if not all(isinstance(one, str) for one in found):
        raise InvalidInput.at(name, msg="must be texts")
    return tuple(dict.fromkeys(found))


def named_member(kind: type[E], name: str, value: E | str | None) -> E | None:
    """Return the member of an enumeration that an argument is, or names. Raises `InvalidInput`."""
    try:
        return None if value is None else kind(value)
    except ValueError:
        raise InvalidInput.at(
            name, msg=f"must be one of {', '.join(kind)}{nearest(str(value), map(str, kind))}"
        ) from None


def check_metadata(metadata: object) -> None:
    """Raise `InvalidInput` for a filter of metadata that is no mapping."""
    if not isinstance(metadata, Mapping):
        raise InvalidInput.at("metadata", msg="must be a mapping of texts")


def unique_ids(ids: Iterable[str]) -> Sequence[str]:
    named = unique_texts("ids", ids)
    if len(named) > MAX_IDS:
        raise InvalidInput.at("ids", msg=f"name at most {MAX_IDS} at a time", type="too_long")
    return named


def cursor_at(cls: type[Any], index: str, record: object) -> Cursor:
    """Return the cursor after a record of `cls`, or after any object that has the columns of the cursor."""
    return declaration_of(cls).cursor(index, record)


def _as_they_are(_: Snapshot, found: Sequence[Any]) -> Sequence[Any]:
    return found


def named_place(runtime: Runtime, principal: Principal, entity: str | None, project: str | None) -> tuple[str, str]:
    """Return the entity and the project, by default the principal's own and the platform's default one. Raises
    `Forbidden` if the principal lacks them, and `InvalidInput` for what cannot be a name."""
    entity = principal.entity if entity is None else entity
    project = runtime.project if project is None else project
    principal.require(entity, project)
    project = check_name(project, "project")
    return check_name(entity, "entity"), project


def listed_entity(principal: Principal, entity: str | None, project: str | None) -> str | None:
    """Return the entity of a listing: the named one, the caller's if only a project is named, else None for every
    entity that the caller may see. Raises `Forbidden`."""
    own = principal.scope.entity if project is None else principal.entity
    named = own if entity is None else entity
    if named is not None:
        principal.require(named, project)
    return named


def listed_index(entity: str | None, project: str | None) -> tuple[str, ...]:
    if entity is None:
        return ("all",)
    return ("by_entity", entity) if project is None else ("by_project", entity, project)


def index_listing(
    runtime: Runtime,
    cls: type[R],
    index: str,
    *where: object,
    place: Callable[[str, Snapshot], Cursor],
    order: Order = "asc",
    keep: Callable[[R], bool] = accept_all,
    shown: Callable[[Snapshot, Sequence[R]], Sequence[T]] = _as_they_are,
    also: tuple[object, ...] = (),
) -> Listing[T]:
    """List the records of an index that `keep` keeps, as `shown` shows them; in their order also records with the
    values `also` instead of `where`. `place` finds the cursor of an id. Raises `InvalidInput` for an unknown order."""
    if order not in ("asc", "desc"):
        raise InvalidInput.at("order", msg="must be 'asc' or 'desc'")

    def read(cursor: Cursor | None, size: int) -> Sequence[R]:
        size = size if keep is accept_all else max(size, BATCH)
        parts = [
            runtime.store.read(partial(_batch, cls, index, values, cursor, size, order == "desc"))
            for values in ((where, also) if also else (where,))
        ]
        merged = merge(*parts, key=partial(cursor_at, cls, index), reverse=order == "desc")
        return parts[0] if len(parts) == 1 else list(islice(merged, size))

    def show(found: Sequence[R]) -> Sequence[T]:
        return runtime.store.read(lambda snapshot: shown(snapshot, found)) if found else ()

    return Listing(
        in_batches(read, partial(cursor_at, cls, index), keep),
        lambda name: runtime.store.read(partial(place, name)),
        tuple if shown is _as_they_are else show,
        runtime.store_threads(""),
    )


def _selected(
    cls: type[Any],
    names: Sequence[str],
    index: str,
    where: tuple[object, ...],
    after: Cursor | None,
    snapshot: Snapshot,
) -> list[tuple[Any, ...]]:
    return snapshot.select(cls, names, index, *where, after=after, limit=MANY)


def _batch(
    cls: type[R],
    index: str,
    where: tuple[object, ...],
    after: Cursor | None,
    limit: int,
    descending: bool,
    snapshot: Snapshot,
) -> list[R]:
    return snapshot.page(cls, index, *where, after=after, limit=limit, descending=descending)
