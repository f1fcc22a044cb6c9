"""The resources that a job requests, and the capacity of a worker."""

from collections.abc import Iterable, Mapping
from typing import Any, Self, TypedDict

import attrs

from modelyard.domain.job import Needs
from modelyard.errors import InvalidInput, Problem

MOST = 100_000


class Resources(TypedDict, total=False):
    accelerators: int
    memory: int


def check_resources(needs: Mapping[str, Any]) -> Resources:
    known = Resources.__annotations__
    if not isinstance(needs, Mapping):
        raise InvalidInput.at("needs", msg=f"must be a mapping with {' and '.join(known)}")
    problems = [
        Problem(("needs", name), f"must be a whole number from 0 to {MOST}" if name in known else "is not known")
        for name, amount in needs.items()
        if name not in known or type(amount) is not int or not 0 <= amount <= MOST
    ]
    if problems:
        raise InvalidInput(problems)
    return Resources(accelerators=needs.get("accelerators", 0), memory=needs.get("memory", 0))


@attrs.frozen
class Capacity:
    """What a worker gives to its jobs: so many accelerators, and so many GiB of memory; None means any number."""

    accelerators: int | None = 0
    memory: int | None = None

    def gives(self, needs: Needs) -> bool:
        return _enough(self.accelerators, needs.accelerators) and _enough(self.memory, needs.memory)

    def without(self, jobs: Iterable[Needs]) -> Self:
        running = list(jobs)
        return type(self)(
            _less(self.accelerators, sum(needs.accelerators for needs in running)),
            _less(self.memory, sum(needs.memory for needs in running)),
        )


ANY = Capacity(None, None)
"""The capacity of a cluster, which keeps a job waiting until there is room."""


def _enough(there: int | None, needed: int) -> bool:
    return there is None or needed <= max(there, 0)


def _less(there: int | None, taken: int) -> int | None:
    return None if there is None else there - taken
