"""The prices of a request that arrives now: what each plan of a request asks, so it loads little."""

from typing import TYPE_CHECKING

import attrs

from modelyard.domain.catalogue import CatalogueRevision
from modelyard.domain.record import KEY

if TYPE_CHECKING:
    from modelyard.platform.runtime import Runtime
    from modelyard.protocols import ServedModel, Snapshot


EVER_SET = "routers"
"""The key of the record that is there once anything was said of a model."""


def priced(runtime: "Runtime", snapshot: "Snapshot", served: "ServedModel") -> "ServedModel":
    """Return a model with the prices of a request that arrives now."""
    if snapshot.find(CatalogueRevision, KEY, EVER_SET) is None:
        return served
    from modelyard.parts.routers.prices import at  # noqa: PLC0415 - most platforms have no rules
    from modelyard.parts.routers.records import RouterListing  # noqa: PLC0415 - finding it loads what is declared before

    said = snapshot.find(RouterListing, KEY, served.entry.id)
    if said is None or not said.rules:
        return served
    pricing = at(served.entry.pricing, said.rules, runtime.clock.now())
    return attrs.evolve(served, entry=attrs.evolve(served.entry, pricing=pricing))
