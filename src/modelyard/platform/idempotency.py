"""Requests under an idempotency key: the first creates, and its answer is stored in the transaction that creates. So
each creates once, however often it is sent, concurrently or not, and whichever process dies in between."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import attrs

from modelyard.domain.identity import EXPIRED_AT_ONCE, AnsweredRequest, KeyedRequest
from modelyard.errors import IdempotencyKeyUsed
from modelyard.platform.owned import unless_deleted
from modelyard.platform.paging import get_or_none
from modelyard.platform.platform import Platform
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Store, Tx

T = TypeVar("T")


class AlreadyAnswered(Exception):
    """Raised instead of creating a second time: the same request was answered meanwhile."""

    def __init__(self, answer: str) -> None:
        self.answer: str = answer
        super().__init__("the same request was answered meanwhile")


class RecordingStore:
    """A store that records, in its next transaction, the answer to a request: `show` of the outcome."""

    def __init__(self, runtime: Runtime, request: KeyedRequest, show: Callable[[Any], str]) -> None:
        self._runtime, self._store, self._request, self._show = runtime, runtime.store, request, show
        self._recorded, self._began = False, runtime.clock.monotonic()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def transact(self, step: Callable[[Tx], T], durable: bool = True) -> T:
        first = unless_deleted(self._runtime, self._request.principal.entity, self._began, self._recording(step))
        outcome = self._store.transact(step if self._recorded else first, durable)
        self._recorded = True
        return outcome

    def _recording(self, step: Callable[[Tx], T]) -> Callable[[Tx], T]:
        def recording(tx: Tx) -> T:
            known = find_answer(tx, self._request)
            if known is not None:
                raise AlreadyAnswered(known)
            outcome = step(tx)
            _record(tx, self._request.answered(self._show(outcome), tx.time))
            return outcome

        return recording


def answer_once(
    platform: Platform, request: KeyedRequest, create: Callable[[Platform], T], show: Callable[[T], str]
) -> str:
    """Return `show` of what `create` creates; for a request that was answered before, that answer. `create` makes one
    transaction on the platform that it is called with, and returns its outcome. Its exception is not recorded. Raises
    `IdempotencyKeyUsed` when another request was answered under the key."""
    runtime = platform._runtime
    known = runtime.store.read(lambda snapshot: find_answer(snapshot, request))
    if known is not None:
        return known
    store = cast(Store, RecordingStore(runtime, request, show))
    try:
        return show(create(Platform(attrs.evolve(runtime, store=store), platform._principal, platform._life)))
    except AlreadyAnswered as meanwhile:
        return meanwhile.answer


def find_answer(snapshot: Snapshot, request: KeyedRequest) -> str | None:
    known = get_or_none(snapshot, AnsweredRequest, request.id)
    if known is None or known.expired(snapshot.time):
        return None
    if known.request != request.request:
        raise IdempotencyKeyUsed(
            f"the idempotency key {request.key!r} was used for another request; "
            "send that request again unchanged, or choose a new key"
        )
    return known.answer


def _record(tx: Tx, answered: AnsweredRequest) -> None:
    for old in tx.page(AnsweredRequest, "by_age", limit=EXPIRED_AT_ONCE):
        if old.id != answered.id and old.expired(tx.time):
            tx.remove(AnsweredRequest, old.id)
    if get_or_none(tx, AnsweredRequest, answered.id) is None:
        tx.add(answered)
    else:
        tx.replace(answered)
