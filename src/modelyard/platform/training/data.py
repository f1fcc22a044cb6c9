"""Training data on their way into the artifact store: checked row by row, kept as JSON Lines, never whole in memory."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import attrs

from modelyard.domain.training import Example, Trajectory, TrajectoryGroup
from modelyard.errors import InvalidInput
from modelyard.formats.training_data import dump_example, dump_group, example_of, group_of
from modelyard.protocols import ArtifactStore, StoredArtifact

T = TypeVar("T")

ExampleData = Iterable[Example | Mapping[str, Any]]
"""Examples, as values or as plain dicts in the wire's shape."""

GroupData = Iterable[TrajectoryGroup | Mapping[str, Any]]
"""Trajectory groups, as values or as plain dicts in the wire's shape."""


def examples_of(data: ExampleData) -> Iterator[Example]:
    """The examples. Raises `InvalidInput` at ("data", <row>, ...)."""
    return (row if isinstance(row, Example) else _at(number, example_of, row) for number, row in enumerate(data))


def groups_of(data: GroupData) -> Iterator[TrajectoryGroup]:
    """The groups. Raises `InvalidInput` at ("data", <group>, ...)."""
    return (row if isinstance(row, TrajectoryGroup) else _at(number, group_of, row) for number, row in enumerate(data))


def _at(number: int, parse: Callable[[Mapping[str, Any]], T], row: Mapping[str, Any]) -> T:
    try:
        return parse(row)
    except InvalidInput as error:
        raise InvalidInput([attrs.evolve(one, loc=("data", number, *one.loc)) for one in error.problems]) from None


def store_examples(artifacts: ArtifactStore, examples: Iterable[Example]) -> tuple[StoredArtifact, int]:
    """Keep examples; answers how many there were, too."""
    return _store(artifacts, examples, dump_example)


def store_groups(artifacts: ArtifactStore, groups: Iterable[TrajectoryGroup]) -> tuple[StoredArtifact, int]:
    """Keep trajectory groups; answers how many there were, too."""
    return _store(artifacts, groups, dump_group)


def _store(artifacts: ArtifactStore, rows: Iterable[T], dump: Callable[[T], bytes]) -> tuple[StoredArtifact, int]:
    count = 0

    def lines() -> Iterator[bytes]:
        nonlocal count
        for row in rows:
            count += 1
            yield dump(row)

    return artifacts.put(lines()), count


class Means:
    """The mean reward and metrics of trajectories that pass by. Only finite numbers and bools among metrics count."""

    def __init__(self) -> None:
        self.trajectories = 0
        self._rewards = 0.0
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._counts: defaultdict[str, int] = defaultdict(int)

    def over(self, groups: Iterable[TrajectoryGroup]) -> Iterator[TrajectoryGroup]:
        """The same groups, counted."""
        for group in groups:
            for trajectory in group.trajectories:
                self._count(trajectory)
            yield group

    @property
    def reward(self) -> float | None:
        """The mean reward, or None without any trajectory, or where the sum is beyond a float."""
        return self._rewards / self.trajectories if self.trajectories and math.isfinite(self._rewards) else None

    @property
    def metrics(self) -> Mapping[str, float]:
        """The mean of each metric over the trajectories that have it; without those whose sum is beyond a float."""
        return {name: total / self._counts[name] for name, total in self._sums.items() if math.isfinite(total)}

    def _count(self, trajectory: Trajectory) -> None:
        self.trajectories += 1
        self._rewards += trajectory.reward
        for name, value in trajectory.metrics.items():
            if isinstance(value, int | float) and math.isfinite(value):
                self._sums[name] += value
                self._counts[name] += 1
