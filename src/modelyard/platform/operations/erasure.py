"""Delete all data of one entity: records first, in small steps, then the files that only they named."""

from collections.abc import Sequence
from typing import Any

from modelyard.domain import promotion as alias
from modelyard.domain.identity import ApiKey, BrowserSession, Principal, Scope
from modelyard.domain.models import Model
from modelyard.domain.record import Record, declaration_of
from modelyard.domain.usage import LedgerEntry, UsageTotal
from modelyard.errors import Unauthenticated
from modelyard.formats.chat import kept_fast
from modelyard.platform.catalogue.offered_models import trained_offers
from modelyard.platform.catalogue.service import Catalogue
from modelyard.platform.keys.service import REMEMBERED_SECONDS
from modelyard.platform.models.service import Models
from modelyard.platform.owned import artifacts_of, mark_deleted, remove_owned
from modelyard.platform.runtime import Runtime
from modelyard.platform.usage.presence import presence_of
from modelyard.protocols import Tx

# How many records one step removes: the store is held for milliseconds, not for the whole deletion.
BATCH = 200
_ON_ITS_WAY = 0.5
"""Seconds: how long a request may take from being let in to its row of the ledger, if it is not a long answer."""


def erase_entity(runtime: Runtime, entity: str, keep_ledger: bool = False) -> int:
    """Delete every record of `entity` and its files, or all but its ledger. Returns how many records were deleted.

    Its keys go first, and nothing is booked of its requests under way here. If it had keys, the rest goes once every
    process refuses them; texts of what began before then are stored by none. Catalogue entries that its models answer
    are unregistered next. Then aliases are removed, then models, by `Models.delete`, which cancels their jobs. Every
    step can be repeated after a crash. Raises `StoreError` if the store has records of a part that is not open.
    """
    runtime.require_every_part()
    host = Principal("host", entity, Scope(None))
    removed = sum(_erase_all(runtime, declaration_of(cls), entity) for cls in (ApiKey, BrowserSession))
    if removed:
        runtime.clock.sleep(REMEMBERED_SECONDS + _ON_ITS_WAY)
    runtime.store.transact(lambda tx: mark_deleted(tx, entity, runtime.clock.now()))
    _cut_requests(runtime, entity)
    _withdraw(runtime, host)
    models = Models(runtime, host)
    removed += sum(_erase_all(runtime, record, entity) for record in alias.RECORDS)
    while found := runtime.store.read(lambda snapshot: snapshot.page(Model, "by_entity", entity)):
        for model in found:
            models.delete(model.id)
    kept = (LedgerEntry, UsageTotal) if keep_ledger else ()
    files_first = sorted(runtime.records, key=lambda one: not (one.erased_with and one.artifacts))
    for record in files_first:  # what is erased with another record leaves its files
        if "by_entity" in record.indexes and record.cls not in kept:
            removed += _erase_all(runtime, record, entity)
    runtime.store.sync()
    return removed


def _cut_requests(runtime: Runtime, entity: str) -> None:
    """End the requests of an entity in this process, of which nothing is booked."""
    for request_id, request in [*runtime.cache.running.items()]:
        if request.attribution.entity == entity and runtime.cache.running.pop(request_id, None) is not None:
            request.cut(Unauthenticated("the entity of this request was deleted"))
            presence_of(runtime).release(request_id)
    runtime.cache.slot(kept_fast.KeptMembers).forget(entity)


def _withdraw(runtime: Runtime, host: Principal) -> None:
    for entry_id, named in runtime.store.read(lambda snapshot: list(trained_offers(snapshot))):
        if named.entity == host.entity:
            Catalogue(runtime, host).unregister(entry_id)


def _erase_all(runtime: Runtime, record: Record, entity: str) -> int:
    removed = 0
    while True:
        gone = runtime.store.transact(lambda tx: _erase_batch(tx, runtime.records, record, entity))
        for name in artifacts_of(*gone):
            runtime.artifacts.remove(name)
        removed += len(gone)
        if len(gone) < BATCH:
            return removed


def _erase_batch(tx: Tx, records: Sequence[Record], record: Record, entity: str) -> list[Any]:
    gone: list[Any] = tx.page(record.cls, "by_entity", entity, limit=BATCH)
    for value in gone:
        remove_owned(tx, records, value)
        tx.remove(record.cls, *record.key_of(value))
    return gone
