"""Training data on their way into the artifact store: checked row by row, kept as JSON Lines, never all in memory."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

import attrs

from modelyard.domain.training import Dataset, DatasetName, Example, Preference, Trajectory, TrajectoryGroup
from modelyard.domain.training_config import TrainingConfig
from modelyard.errors import InvalidInput
from modelyard.formats.converter import unstructure
from modelyard.formats.training_data import RowFormat
from modelyard.platform.artifacts import remove_unless_recorded
from modelyard.platform.runtime import Runtime
from modelyard.protocols import ArtifactStore, Snapshot, StoredArtifact, Tx

T = TypeVar("T")

ExampleData = Iterable[Example | Mapping[str, Any]]
PreferenceData = Iterable[Preference | Mapping[str, Any]]
DatasetRows = ExampleData | PreferenceData | Iterable[Example | Preference]
GroupData = Iterable[TrajectoryGroup | Mapping[str, Any]]


def rows_of(rows: RowFormat[T], data: Iterable[T | Mapping[str, Any]]) -> Iterator[T]:
    return (_value(rows, number, row) for number, row in enumerate(data))


def _value(rows: RowFormat[T], number: int, row: T | Mapping[str, Any]) -> T:
    if isinstance(row, rows.value):
        return row
    try:
        return rows.of(unstructure(row))  # callers may use tuples and any mapping
    except InvalidInput as error:
        raise InvalidInput([attrs.evolve(one, loc=("data", number, *one.loc)) for one in error.problems]) from None


def store_rows(artifacts: ArtifactStore, rows: RowFormat[T], data: Iterable[T]) -> tuple[StoredArtifact, int]:
    count = 0

    def lines() -> Iterator[bytes]:
        nonlocal count
        for row in data:
            count += 1
            yield rows.dump(row)

    return artifacts.put(lines()), count


class Means:
    """Counts the mean reward and metrics of trajectories. Only finite numbers and bools among metrics count."""

    def __init__(self) -> None:
        self.trajectories: int = 0
        self._rewards = 0.0
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._counts: defaultdict[str, int] = defaultdict(int)

    def over(self, groups: Iterable[TrajectoryGroup]) -> Iterator[TrajectoryGroup]:
        for group in groups:
            for trajectory in group.trajectories:
                self._count(trajectory)
            yield group

    @property
    def reward(self) -> float | None:
        """The mean reward, or None without any trajectory, or if the sum is beyond a float."""
        return self._rewards / self.trajectories if self.trajectories and math.isfinite(self._rewards) else None

    @property
    def metrics(self) -> Mapping[str, float]:
        """The mean of each metric over the trajectories that have it; without sums beyond a float."""
        return {name: total / self._counts[name] for name, total in self._sums.items() if math.isfinite(total)}

    def _count(self, trajectory: Trajectory) -> None:
        self.trajectories += 1
        self._rewards += trajectory.reward
        for name, value in trajectory.metrics.items():
            if isinstance(value, int | float) and math.isfinite(value):
                self._sums[name] += value
                self._counts[name] += 1


# ---- versions of datasets ----------------------------------------------------------------------------------------


def version_of(snapshot: Snapshot, named: DatasetName) -> Dataset | None:
    place = (named.entity, named.project, named.name)
    if named.version is not None:
        return snapshot.find(Dataset, "version", *place, named.version)
    latest = snapshot.page(Dataset, "by_name", *place, limit=1, descending=True)
    return latest[0] if latest else None


def add_version(tx: Tx, requested: Dataset) -> Dataset:
    """Add the next version of a dataset, unless one has the same digest already: then return that one."""
    place = (requested.entity, requested.project, requested.name)
    same = tx.page(Dataset, "by_digest", *place, requested.digest, limit=1, descending=True)
    if same:
        return same[0]
    latest = tx.page(Dataset, "by_name", *place, limit=1, descending=True)
    dataset = attrs.evolve(requested, version=latest[0].version + 1 if latest else 0)
    tx.add(dataset)
    return dataset


def keep_version(runtime: Runtime, place: tuple[str, str, str], stored: StoredArtifact, rows: int) -> Dataset:
    """Make stored rows the next version of the named dataset, or find the version that has them; else they are removed.
    Raises `InvalidInput` for no rows."""
    with remove_unless_recorded(runtime.artifacts, stored):
        check_not_empty(rows)
        requested = Dataset(
            runtime.ids(), *place, 0, stored.name, rows, stored.size, stored.digest, runtime.clock.now()
        )
        dataset = runtime.store.transact(lambda tx: add_version(tx, requested))
    if dataset.id != requested.id:
        runtime.artifacts.remove(stored.name)
    return dataset


def own(stored: StoredArtifact) -> Mapping[str, Any]:
    return {"artifact": stored.name, "digest": stored.digest}


def check_not_empty(rows: int) -> None:
    if not rows:
        raise InvalidInput.at("data", msg="has no rows; give at least one example")


def check_rows(config: TrainingConfig, rows: int) -> None:
    check_not_empty(rows)
    config.check_rows(rows)


def readable_rows(artifacts: ArtifactStore, dataset: Dataset, rows: RowFormat[Any]) -> int:
    """Count the rows of a dataset. Raises `InvalidInput` naming the line at which it is not of this format. The rows of
    a checked dataset are of one format: that of the first."""
    with artifacts.open(dataset.artifact) as file:
        try:
            found = sum(1 for _ in islice(rows.read(file), 1 if dataset.rows else None))
        except InvalidInput as wrong:
            raise wrong.below("training_data_url") from None
    return dataset.rows or found
