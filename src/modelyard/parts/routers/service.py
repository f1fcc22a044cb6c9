"""`platform.routers`: what model routers are told of the catalogue, and prices that depend on the request."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from modelyard.domain.catalogue import CatalogueRevision
from modelyard.domain.identity import Principal
from modelyard.domain.record import KEY
from modelyard.errors import Forbidden, InvalidInput, nearest
from modelyard.parts.routers.document import listing
from modelyard.parts.routers.held import EVER_SET
from modelyard.parts.routers.prices import PriceRule, check_rules
from modelyard.parts.routers.records import CAPACITY, PUBLIC, RouterListing
from modelyard.platform.catalogue.service import Catalogue
from modelyard.platform.paging import get_or_none, iter_index, remove_if_present
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

_MOST = 2**53


class Routers:
    """What model routers are told of models. Only the host may change it.

    platform.routers.set("echo", [{"from_prompt_tokens": 200_001, "prompt": "0.000004"}])
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    def set(
        self,
        model: str,
        rules: Iterable[PriceRule | Mapping[str, Any]] = (),
        *,
        is_ready: bool = True,
        capacity: Mapping[str, int] | None = None,
    ) -> RouterListing:
        """Replace what routers are told of a model of the catalogue, and what its requests cost from now on.

        `rules` set other prices for long prompts and for hours; of those that hold, later ones win. What a request
        costs depends on when it arrived. `capacity` is by the names of `CAPACITY`. Raises `Forbidden`, `InvalidInput`,
        `ModelNotFound`.
        """
        if self._principal.scope.entity is not None:
            raise Forbidden("only the host may change what routers are told")
        entry = Catalogue(self._runtime, self._principal).get(model)
        known = check_rules(rules)
        body = {"rules": [rule.as_data() for rule in known]} if known else {}
        made = RouterListing(entry.id, body, is_ready, _capacity(capacity or {}))
        self._runtime.store.transact(partial(_put, made))
        return made

    def get(self, model: str) -> RouterListing:
        """Return what was set of a model, or that nothing was."""
        found = self._runtime.store.read(lambda snapshot: get_or_none(snapshot, RouterListing, model))
        return RouterListing(model) if found is None else found

    def remove(self, model: str) -> None:
        """Let a model have the prices of its entry again. Idempotent. Raises `Forbidden`."""
        if self._principal.scope.entity is not None:
            raise Forbidden("only the host may change what routers are told")
        self._runtime.store.transact(lambda tx: remove_if_present(tx, RouterListing, model))

    def document(self) -> Mapping[str, Any]:
        """Return the catalogue in the provider format 2.4, as JSON data."""

        def every(snapshot: Snapshot) -> dict[str, RouterListing]:
            return {one.id: one for one in iter_index(snapshot, RouterListing, "listed", PUBLIC)}

        said, today = self._runtime.store.read(every), self._runtime.clock.now().date()
        entries = Catalogue(self._runtime, self._principal).list()
        return {"data": [listing(entry, said.get(entry.id, RouterListing(entry.id)), today) for entry in entries]}


def _capacity(given: Mapping[str, int]) -> Mapping[str, int]:
    for name, value in given.items():
        if name not in CAPACITY:
            raise InvalidInput.at("capacity", name, msg=f"is not known{nearest(name, CAPACITY)}")
        if type(value) is not int or not 1 <= value <= _MOST:
            raise InvalidInput.at("capacity", name, msg="must be a whole number from 1 to 2^53")
    return given


def _put(made: RouterListing, tx: Tx) -> None:
    if tx.find(CatalogueRevision, KEY, EVER_SET) is None:
        tx.add(CatalogueRevision(EVER_SET, 1))
    if tx.find(RouterListing, KEY, made.id) is None:
        tx.add(made)
    else:
        tx.replace(made)
