"""The model catalogue: the models that requests can name, and how a name is resolved (specification 2.1, 4.1)."""

from collections.abc import Callable, Mapping, Sequence, Set
from operator import attrgetter
from typing import BinaryIO

import attrs

from modelyard.domain import models
from modelyard.domain import promotion as alias
from modelyard.domain.catalogue import CatalogueEntry, CatalogueRevision, RegisteredEntry, check_entry
from modelyard.domain.identity import Principal
from modelyard.domain.record import KEY
from modelyard.errors import ArtifactMissing, Forbidden, InvalidInput, ModelNotFound, RecordNotFound, nearest
from modelyard.part import Named
from modelyard.platform.catalogue.offered_models import OFFER, answer_name, registered, trained_answer
from modelyard.platform.listing import Listing, short_listing
from modelyard.platform.runtime import Runtime
from modelyard.protocols import ServedModel, Snapshot, Tx
from modelyard.threads import TenantThreads

_PAGE = 1000
_SHOWN = 255
_FEW = 12

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
        listed |= self._runtime.store.read(lambda snapshot: self._registered(snapshot, offers))
        return [listed[name] for name in sorted(listed)]

    def _registered(self, snapshot: Snapshot, offers: Offers) -> Mapping[str, CatalogueEntry]:
        answering = (_answering(self._runtime, snapshot, offers, record, None) for record in registered(snapshot))
        return {found.entry.id: found.entry for found in answering if found is not None}

    def get(self, id: str) -> CatalogueEntry:
        """Return one entry. Raises `ModelNotFound`."""
        offers = offered(self._runtime)
        found = self._runtime.store.read(lambda snapshot: _catalogued(self._runtime, snapshot, offers, id, None))
        if found is None:
            raise _missing(id, _hint(id, {entry.id for entry in self._entries()}))
        return found.entry

    def resolve(self, name: str) -> ServedModel:
        """Return the model that a request with this name is sent to: a catalogue entry, or a trained model. Raises
        `Forbidden`, `ModelNotFound`."""
        return resolve(self._runtime, name, self._principal)

    @property
    def version(self) -> tuple[int, int]:
        """The version of the list: it changes whenever the list does, also by another process. Valid in this process
        only.
        """
        offered(self._runtime)
        return self._runtime.store.read(_revision), self._runtime.cache.offers

    def register(self, entry: CatalogueEntry, answers_as: str | None = None) -> None:
        """List `entry`, answered by the model `answers_as` (by default the one with the entry's id), to every tenant.

        That is a model of the backend, or a trained one: "project/name" or "entity/project/name", with ":prod" for an
        alias, ":step3" for a step, else the latest checkpoint. What an alias points to is looked up at each request.
        The entry's price and lengths apply. What a trained model needs to answer cannot be removed meanwhile.

        It replaces a registered entry with its id. Only the host may call this. Raises `InvalidInput`, `Forbidden`.
        """
        self._require_host()
        check_entry(entry)
        offers, model = offered(self._runtime), answers_as or entry.id
        self._runtime.store.transact(
            lambda tx: _put(tx, RegisteredEntry.of(entry, self._answer_stored(tx, offers, model)))
        )

    def _answer_stored(self, snapshot: Snapshot, offers: Offers, model: str) -> str:
        if model in offers:
            return model
        named = models.ModelName.within(self._principal.entity, model)
        if named is None or _trained(self._runtime, snapshot, offers, named, None) is None:
            msg = f"no backend offers a model {model[:_SHOWN]!r}, and no trained model has that name; name another one"
            raise InvalidInput.at("answers_as", msg=msg)
        return answer_name(named)

    def unregister(self, id: str) -> None:
        """Remove a registered entry. Only the host may call this. Raises `ModelNotFound`, `Forbidden`."""
        self._require_host()
        self._runtime.store.transact(lambda tx: _remove(tx, id))

    def _require_host(self) -> None:
        if self._principal.scope.entity is not None:
            raise Forbidden("only the host may change the catalogue")


def resolve(runtime: Runtime, name: str, principal: Principal) -> ServedModel:
    """Resolve a name to a model: by its catalogue id, else a trained model with its checkpoint (`ModelName`). Raises
    `ModelNotFound`, and `Forbidden` for an entity or project outside the principal's scope, whether or not it
    exists."""
    offers = offered(runtime)
    return runtime.store.read(lambda snapshot: find_served(runtime, snapshot, offers, name, principal)[0])


def find_served(
    runtime: Runtime, snapshot: Snapshot, offers: Offers, name: str, principal: Principal
) -> tuple[ServedModel, str, Named | None]:
    """Return the model that answers for a name, its own name, and what a part serves under the given one."""
    try:
        return served(runtime, snapshot, offers, name, principal), name, None
    except (ModelNotFound, Forbidden):
        finds = (part.names for part in runtime.parts if part.names is not None)
        named = next(filter(None, (find(runtime, snapshot, principal, name) for find in finds)), None)
        if named is None:
            raise
        return served(runtime, snapshot, offers, named.model, principal), named.model, named


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
    threads = runtime.threads.backends.of(principal.entity)
    found = _catalogued(runtime, snapshot, offers, name, threads)
    if found is not None:
        return found
    named = models.ModelName.within(principal.entity, name)
    if named is not None:
        principal.require(named.entity, named.project)
        found = _trained(runtime, snapshot, offers, named, threads)
    if found is None:
        raise _missing(name, _near(snapshot, offers, name, principal))
    return found


def _catalogued(
    runtime: Runtime, snapshot: Snapshot, offers: Offers, name: str, threads: TenantThreads | None
) -> ServedModel | None:
    record = snapshot.find(RegisteredEntry, KEY, name)
    found = None if record is None else _answering(runtime, snapshot, offers, record, threads)
    return _of_backend(offers, name, threads) if found is None else found


def _answering(
    runtime: Runtime, snapshot: Snapshot, offers: Offers, record: RegisteredEntry, threads: TenantThreads | None
) -> ServedModel | None:
    if record.answers_as in offers:
        return ServedModel(record.answers_as, record.entry(), threads=threads)
    named = trained_answer(record)
    found = None if named is None else _trained(runtime, snapshot, offers, named, threads)
    return None if found is None else attrs.evolve(found, entry=record.entry())


def _of_backend(offers: Offers, name: str, threads: TenantThreads | None) -> ServedModel | None:
    return ServedModel(name, offers[name], threads=threads) if name in offers else None


def _trained(
    runtime: Runtime, snapshot: Snapshot, offers: Offers, named: "models.ModelName", threads: TenantThreads | None
) -> ServedModel | None:
    model = snapshot.find(models.Model, "name", named.entity, named.project, named.name)
    base = None if model is None else _base(snapshot, offers, model.base_model, threads)
    if model is None or base is None:
        return None
    checkpoint = checkpoint_named(snapshot, model, named)
    if checkpoint is None:
        return None if named.step or named.alias else base
    return ServedModel(base.base_model, base.entry, checkpoint, _opener(runtime, checkpoint), threads)


def _base(snapshot: Snapshot, offers: Offers, name: str, threads: TenantThreads | None) -> ServedModel | None:
    """Return a base model, which is always the backend's; a registered entry may set its price."""
    record = snapshot.find(RegisteredEntry, KEY, name)
    if record is not None and record.answers_as in offers:
        return ServedModel(record.answers_as, record.entry(), threads=threads)
    return _of_backend(offers, name, threads)


def checkpoint_named(
    snapshot: Snapshot, model: "models.Model", parts: "models.ModelName"
) -> "models.Checkpoint | None":
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
        return runtime.artifacts.open(checkpoint.files[name]["artifact"], checkpoint.files[name]["digest"])

    return open_file


def _missing(name: str, hint: str = "") -> ModelNotFound:
    return ModelNotFound("model", name[:_SHOWN], f"the catalogue lists the models that can be used{hint}")


def _near(snapshot: Snapshot, offers: Offers, name: str, principal: Principal) -> str:
    trained = snapshot.page(models.Model, "by_entity", principal.entity, limit=_PAGE)
    seen = [model for model in trained if principal.scope.covers(model.entity, model.project)]
    registered = [record.id for record in snapshot.page(RegisteredEntry, "listed", OFFER, limit=_PAGE)]
    known = {*offers, *registered, *(f"{one.project}/{one.name}" for one in seen)}
    known |= {f"{one.entity}/{one.project}/{one.name}" for one in seen}
    return _hint(name, known)


def _hint(name: str, known: Set[str]) -> str:
    return nearest(name[:_SHOWN], known) or (f": {', '.join(sorted(known))}" if len(known) <= _FEW else "")


def _revision(snapshot: Snapshot) -> int:
    revision = snapshot.find(CatalogueRevision, KEY, OFFER)
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
    revision = CatalogueRevision(OFFER, number + 1)
    if number:
        tx.replace(revision)
    else:
        tx.add(revision)


def booked_name(requested: str, entry: CatalogueEntry, principal: Principal) -> str:
    """Return the catalogue id, or `entity/project/name` of a trained model without its step or alias."""
    parts = None if requested == entry.id else models.ModelName.within(principal.entity, requested)
    return entry.id if parts is None else f"{parts.entity}/{parts.project}/{parts.name}"


def requested_name(runtime: Runtime, given: "models.Model | models.Checkpoint") -> str:
    model_id, step = (given.id, "") if isinstance(given, models.Model) else (given.model_id, f":step{given.step}")
    model = runtime.store.read(lambda snapshot: snapshot.find(models.Model, KEY, model_id))
    if model is None:
        raise ModelNotFound("model", model_id, "it was deleted")
    return f"{model.entity}/{model.project}/{model.name}{step}"
