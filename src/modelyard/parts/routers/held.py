"""The prices of a request that arrives now: what each plan of a request asks, so it loads little."""

from typing import TYPE_CHECKING

import attrs

from modelyard.domain.record import KEY
from modelyard.parts.routers.prices import at
from modelyard.parts.routers.records import RouterListing

if TYPE_CHECKING:
    from modelyard.platform.runtime import Runtime
    from modelyard.protocols import ServedModel, Snapshot


def priced(runtime: "Runtime", snapshot: "Snapshot", served: "ServedModel") -> "ServedModel":
    """Return a model with the prices of a request that arrives now."""
    said = snapshot.find(RouterListing, KEY, served.entry.id)
    if said is None or not said.rules:
        return served
    pricing = at(served.entry.pricing, said.rules, runtime.clock.now())
    return attrs.evolve(served, entry=attrs.evolve(served.entry, pricing=pricing))
