"""Trajectories as newer training clients record them: exchanges with a server, in four formats."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from modelyard.part import Part

if TYPE_CHECKING:
    from modelyard.domain.training import Trajectory


def _trajectories() -> "Callable[..., Trajectory]":
    from modelyard.parts.exchanges.reading import read_trajectory

    return read_trajectory


PART = Part("exchanges", trajectories=_trajectories)
