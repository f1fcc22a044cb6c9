"""Trajectories of which a teacher has scored the choices, as lines of a file, for distillation. A choice without
`teacher_logprobs` was answered by the teacher itself, so that its `logprobs` are the teacher's."""

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
    found = trajectory_of(_with_teachers(value))
    if not any(isinstance(one, SampledChoice) and one.teacher for of in found.histories for one in of.items):
        msg = f"has no choice with {TEACHER}, or with logprobs of the teacher's own answer: nothing is learned from it"
        raise InvalidInput.at(_ITEMS, msg=msg)
    return found


def _with_teachers(row: Any) -> Any:
    """Let the logprobs of each choice be its teacher's, where it has no others."""
    if not isinstance(row, Mapping):
        return row
    read = {_ITEMS: _with_teacher, _FURTHER: _with_teachers}
    given = {name: row[name] for name in read if isinstance(row.get(name), list | tuple)}
    return {**row, **{name: [*map(read[name], items)] for name, items in given.items()}}


def _with_teacher(item: Any) -> Any:
    if not isinstance(item, Mapping) or item.get(TEACHER) is not None or item.get("logprobs") is None:
        return item
    return {**item, TEACHER: item["logprobs"]}


def trajectories_in(row: Any) -> Sequence[Any]:
    """Return the trajectories of a group, or a trajectory as it is."""
    return row["trajectories"] if isinstance(row, Mapping) and isinstance(row.get("trajectories"), list) else [row]


def dump_taught(trajectory: Trajectory) -> bytes:
    histories = [attrs.evolve(of, items=tuple(map(_taught, of.items))) for of in trajectory.histories]
    return dump_trajectory(attrs.evolve(trajectory, histories=tuple(histories)))


def _taught(item: Message | SampledChoice) -> Message | SampledChoice:
    if isinstance(item, Message) or item.teacher is not None:
        return item
    return attrs.evolve(item, teacher=item.logprobs)
