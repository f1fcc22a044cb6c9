"""The saved weights that a principal may see: find them by their paths, list, delete, and let them expire."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from modelyard.domain.identity import Principal
from modelyard.parts.tinker.command_log import found_run
from modelyard.parts.tinker.records import RunWeights, TrainingRun
from modelyard.parts.tinker.saved_weights import (
    expiry,
    files_to_load,
    found_weights,
    remove_weights,
    weights_id,
)
from modelyard.parts.tinker.sessions import ListedSlice, listed_slice
from modelyard.platform.paging import iter_index
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot


class SavedWeights:
    """The weights that runs have saved. Methods raise `NotFound` for weights that the principal may not see."""

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    def get(self, path: str) -> RunWeights:
        """Return saved weights by their path. Raises `NotFound`, `InvalidInput`."""
        named, now = weights_id(path), self._runtime.clock.now()
        return self._runtime.store.read(lambda snapshot: found_weights(snapshot, self._principal, named, now))

    def of_run(self, run_id: str) -> Sequence[RunWeights]:
        """Return the weights that a run has saved, the oldest first. Raises `NotFound`."""
        now = self._runtime.clock.now()

        def query(snapshot: Snapshot) -> Sequence[RunWeights]:
            run = found_run(snapshot, self._principal, run_id)
            return [one for one in iter_index(snapshot, RunWeights, "by_run", run.id) if one.expires_at > now]

        return self._runtime.store.read(query)

    def list(self, offset: int, limit: int) -> ListedSlice:
        """List saved weights of all runs, the newest first."""
        now = self._runtime.clock.now()
        return listed_slice(
            self._runtime, self._principal, RunWeights, offset, limit, lambda weights: weights.expires_at > now
        )

    def delete(self, path: str) -> None:
        """Delete saved weights. Raises `NotFound`, `InvalidInput`."""
        named, now = weights_id(path), self._runtime.clock.now()
        names = self._runtime.store.transact(
            lambda tx: remove_weights(tx, self._runtime, found_weights(tx, self._principal, named, now))
        )
        for name in names:
            self._runtime.artifacts.remove(name)

    def set_expiry(self, path: str, seconds: int | None) -> None:
        """Let saved weights expire after so many seconds, or never. Raises `NotFound`, `InvalidInput`."""
        named, now = weights_id(path), self._runtime.clock.now()
        ends = expiry(now, seconds)
        self._runtime.store.transact(
            lambda tx: tx.replace(attrs.evolve(found_weights(tx, self._principal, named, now), expires_at=ends))
        )


# ---- for runs that load them -------------------------------------------------------------------------------------


def weights_to_load(
    runtime: Runtime, principal: Principal, path: str, optimizer: bool
) -> tuple[RunWeights, TrainingRun]:
    named, now = weights_id(path), runtime.clock.now()

    def query(snapshot: Snapshot) -> tuple[RunWeights, TrainingRun]:
        weights = found_weights(snapshot, principal, named, now)
        files_to_load(snapshot, weights, optimizer)
        return weights, snapshot.get(TrainingRun, weights.run_id)

    return runtime.store.read(query)


def load_arguments(principal: Principal, weights: RunWeights, optimizer: bool) -> Mapping[str, Any]:
    projects = principal.scope.projects
    seen = None if projects is None else sorted(projects)
    return {"path": weights.path, "weights": weights.id, "optimizer": optimizer, "projects": seen}
