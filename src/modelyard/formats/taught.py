"""Trajectories of which a teacher has scored the choices, as lines of a file, for distillation. Where none of them has
`teacher_logprobs`, the teacher itself answered, so that the `logprobs` are the teacher's."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from modelyard.domain.completion import Message
from modelyard.domain.training import SampledChoice, Trajectory
from modelyard.errors import InvalidInput
from modelyard.formats.trajectories import TEACHER, dump_trajectory, trajectory_of

_ITEMS, _FURTHER = "messages_and_choices", "additional_histories"


def taught_of(value: Any) -> Trajectory:
    """Read a trajectory. Raises `InvalidInput`, also if a teacher has scored nothing of it."""
    found = trajectory_of(value if _is_scored(value) else _with_teachers(value))
    if not any(isinstance(one, SampledChoice) and one.teacher for of in found.histories for one in of.items):
        msg = f"has no choice with {TEACHER}, or with logprobs of the teacher's own answer: nothing is learned from it"
        raise InvalidInput.at(_ITEMS, msg=msg)
    return found


def _is_scored(row: Any) -> bool:
    """Return whether a choice of a trajectory has the scores of a teacher."""
    items = row.get(_ITEMS, ()) if isinstance(row, Mapping) else ()
    further = row.get(_FURTHER, ()) if isinstance(row, Mapping) else ()
    found = (isinstance(one, Mapping) and one.get(TEACHER) is not None for one in _listed(items))
    return any(found) or any(map(_is_scored, _listed(further)))


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _with_teachers(row: Any) -> Any:
    """Let the logprobs of each choice be its teacher's."""
    if not isinstance(row, Mapping):
        return row
    read = {_ITEMS: _with_teacher, _FURTHER: _with_teachers}
    return {**row, **{name: [*map(read[name], items)] for name in read if (items := _listed(row.get(name)))}}


def _with_teacher(item: Any) -> Any:
    if not isinstance(item, Mapping) or item.get("logprobs") is None:
        return item
    return {**item, TEACHER: item["logprobs"]}


def trajectories_in(row: Any) -> Sequence[Any]:
    """Return the trajectories of a group, or a trajectory as it is."""
    return row["trajectories"] if isinstance(row, Mapping) and isinstance(row.get("trajectories"), list) else [row]


def dump_taught(trajectory: Trajectory) -> bytes:
    if any(
        isinstance(one, SampledChoice) and one.teacher is not None for of in trajectory.histories for one in of.items
    ):
        return dump_trajectory(trajectory)
    histories = [attrs.evolve(of, items=tuple(map(_taught, of.items))) for of in trajectory.histories]
    return dump_trajectory(attrs.evolve(trajectory, histories=tuple(histories)))


def _taught(item: Message | SampledChoice) -> Message | SampledChoice:
    return item if isinstance(item, Message) else attrs.evolve(item, teacher=item.logprobs)
