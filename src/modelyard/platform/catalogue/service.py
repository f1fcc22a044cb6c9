"""The model catalogue: the models that requests can name, and how a name is resolved (specification 2.1, 4.1)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import BinaryIO

from modelyard.domain import models
from modelyard.domain import promotion as alias
from modelyard.domain.catalogue import CatalogueEntry, CatalogueRevision, RegisteredEntry, check_entry
from modelyard.domain.identity import Principal
from modelyard.domain.record import KEY
from modelyard.errors import ArtifactMissing, Forbidden, InvalidInput, ModelNotFound, RecordNotFound, nearest
from modelyard.platform.listing import Listing, short_listing
from modelyard.platform.runtime import Runtime
from modelyard.protocols import ServedModel, Snapshot, Tx
from modelyard.threads import TenantThreads

_OFFER = "public"
_PAGE = 1000
_SHOWN = 255

Offers = Mapping[str, CatalogueEntry]


class Catalogue:
    """The models that requests can name: those of the backend, and entries that the host registered.

    platform.catalogue.register(attrs.evolve(platform.catalogue.get("echo"), id="parrot"), answers_as="echo")
    [entry.id for entry in platform.catalogue.list()]  # ['echo', 'parrot', ...]
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    def list(self) -> Listing[CatalogueEntry]:
        """List every entry by id. A registered one replaces the backend's with the same id."""
        return short_listing(self._entries, attrgetter("id"), self._runtime.store_threads(""))

    def _entries(self) -> Sequence[CatalogueEntry]:
        offers = offered(self._runtime)
        listed = dict(offers)
        for record in self._runtime.store.read(lambda snapshot: list(_registered(snapshot))):
            if record.answers_as in offers:
                listed[record.id] = record.entry()
        return [listed[name] for name in sorted(listed)]

    def get(self, id: str) -> CatalogueEntry:
        """Return one entry. Raises `ModelNotFound`."""
        offers = offered(self._runtime)
        found = self._runtime.store.read(lambda snapshot: _catalogued(snapshot, offers, id, None))
        if found is None:
            raise _missing(id)
        return found.entry

    def resolve(self, name: str) -> ServedModel:
        """Return the model that a request with this name is sent to: a catalogue entry, or a trained model.

        Raises `Forbidden`, `ModelNotFound`.
        """
        return resolve(self._runtime, name, self._principal)

    @property
    def version(self) -> tuple[int, int]:
        """The version of the list: it changes whenever the list does, also by another process. Valid in this process
        only.
        """
        offered(self._runtime)
        return self._runtime.store.read(_revision), self._runtime.cache.offers

    def register(self, entry: CatalogueEntry, answers_as: str | None = None) -> None:
        """List `entry`, answered by the backend's model `answers_as` (by default the one with the entry's id).

        It replaces a registered entry with its id. Only the host may call this. Raises `InvalidInput`, `Forbidden`.
        """
        self._require_host()
        check_entry(entry)
        model = answers_as or entry.id
        if model not in offered(self._runtime):
            raise InvalidInput.at("answers_as", msg=f"no backend offers a model {model!r}; name one that is offered")
        self._runtime.store.transact(lambda tx: _put(tx, RegisteredEntry.of(entry, model)))

    def unregister(self, id: str) -> None:
        """Remove a registered entry. Only the host may call this. Raises `ModelNotFound`, `Forbidden`."""
        self._require_host()
        self._runtime.store.transact(lambda tx: _remove(tx, id))

    def _require_host(self) -> None:
        if self._principal.scope.entity is not None:
            raise Forbidden("only the host may change the catalogue")


def resolve(runtime: Runtime, name: str, principal: Principal) -> ServedModel:
    """Resolve a name to a model: by its catalogue id, else a trained model with its checkpoint (`ModelName`).

    Raises `ModelNotFound`, and `Forbidden` for an entity or project outside the principal's scope, whether or not it
    exists.
    """
    offers = offered(runtime)
    return runtime.store.read(lambda snapshot: served(runtime, snapshot, offers, name, principal))


def offered(runtime: Runtime) -> Offers:
    """Return what the backend offers, by id. A backend that returns the same tuple again costs nothing."""
    memory, entries = runtime.cache, tuple(runtime.backend.entries())
    if entries is not memory.offered:
        if entries != memory.offered:
            memory.offered_by_id = {entry.id: entry for entry in entries}
            memory.offers += 1
        memory.offered = entries
    return memory.offered_by_id


def served(runtime: Runtime, snapshot: Snapshot, offers: Offers, name: str, principal: Principal) -> ServedModel:
    """Resolve a name like `resolve`, on a snapshot."""
    threads = runtime.threads.backends.of(principal.entity)
    found = _catalogued(snapshot, offers, name, threads)
    if found is not None:
        return found
    parts = models.ModelName.parse(name) or models.ModelName.parse(f"{principal.entity}/{name}")
    if parts is None:
        raise _missing(name, _near(snapshot, offers, name, principal))
    principal.require(parts.entity, parts.project)
    model = snapshot.find(models.Model, "name", parts.entity, parts.project, parts.name)
    base = None if model is None else _catalogued(snapshot, offers, model.base_model, threads)
    if model is None or base is None:
        raise _missing(name, _near(snapshot, offers, name, principal))
    checkpoint = checkpoint_named(snapshot, model, parts)
    if checkpoint is None:
        if parts.step or parts.alias:
            raise _missing(name)
        return base
    return ServedModel(base.base_model, base.entry, checkpoint, _opener(runtime, checkpoint), threads)


def _catalogued(snapshot: Snapshot, offers: Offers, name: str, threads: TenantThreads | None) -> ServedModel | None:
    record = snapshot.find(RegisteredEntry, KEY, name)
    if record is not None and record.answers_as in offers:
        return ServedModel(record.answers_as, record.entry(), threads=threads)
    return ServedModel(name, offers[name], threads=threads) if name in offers else None


def checkpoint_named(
    snapshot: Snapshot, model: "models.Model", parts: "models.ModelName"
) -> "models.Checkpoint | None":
    """Return the checkpoint that a model name refers to: by a step, by an alias, or the latest."""
    step = parts.step
    if parts.alias is not None:
        pointing = snapshot.find(alias.Alias, KEY, model.id, parts.alias)
        if pointing is None:
            return None
        step = pointing.step
    if step is not None:
        return snapshot.find(models.Checkpoint, "step", model.id, step)
    latest = snapshot.page(models.Checkpoint, "by_model", model.id, limit=1, descending=True)
    return latest[0] if latest else None


def _opener(runtime: Runtime, checkpoint: "models.Checkpoint") -> Callable[[str], BinaryIO]:
    def open_file(name: str) -> BinaryIO:
        if name not in checkpoint.files:
            raise ArtifactMissing(f"checkpoint {checkpoint.id} has no file {name!r}")
        return runtime.artifacts.open(checkpoint.files[name]["artifact"])

    return open_file


def _missing(name: str, hint: str = "") -> ModelNotFound:
    return ModelNotFound("model", name[:_SHOWN], f"the catalogue lists the models that can be used{hint}")


def _near(snapshot: Snapshot, offers: Offers, name: str, principal: Principal) -> str:
    """Return a hint with similar names that the principal may use."""
    trained = snapshot.page(models.Model, "by_entity", principal.entity, limit=_PAGE)
    seen = [model for model in trained if principal.scope.covers(model.entity, model.project)]
    registered = [record.id for record in snapshot.page(RegisteredEntry, "listed", _OFFER, limit=_PAGE)]
    known = {*offers, *registered, *(f"{one.project}/{one.name}" for one in seen)}
    known |= {f"{one.entity}/{one.project}/{one.name}" for one in seen}
    return nearest(name[:_SHOWN], known)


def _registered(snapshot: Snapshot) -> Iterator[RegisteredEntry]:
    after = None
    while page := snapshot.page(RegisteredEntry, "listed", _OFFER, after=after, limit=_PAGE):
        yield from page
        after = (page[-1].id,)


def _revision(snapshot: Snapshot) -> int:
    revision = snapshot.find(CatalogueRevision, KEY, _OFFER)
    return 0 if revision is None else revision.number


def _put(tx: Tx, record: RegisteredEntry) -> None:
    try:
        tx.replace(record)
    except RecordNotFound:
        tx.add(record)
    _revise(tx)


def _remove(tx: Tx, name: str) -> None:
    try:
        tx.remove(RegisteredEntry, name)
    except RecordNotFound:
        raise _missing(name) from None
    _revise(tx)


def _revise(tx: Tx) -> None:
    number = _revision(tx)
    revision = CatalogueRevision(_OFFER, number + 1)
    if number:
        tx.replace(revision)
    else:
        tx.add(revision)


def booked_name(requested: str, entry: CatalogueEntry) -> str:
    """Return the catalogue id, or `entity/project/name` of a trained model without its step or alias."""
    parts = None if requested == entry.id else models.ModelName.parse(requested)
    return entry.id if parts is None else f"{parts.entity}/{parts.project}/{parts.name}"
