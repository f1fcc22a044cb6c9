"""Trajectories whose choices a teacher has scored, as lines of a file: those of `trajectories`, where a choice also has
`teacher_logprobs`, in the form of the logprobs of an answer with their alternatives. A choice without them was
answered by the teacher itself, so that its `logprobs` are the teacher's. A token may have its `id`; otherwise its
bytes say which one it is."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import attrs

from modelyard.domain.completion import TokenLogprob
from modelyard.domain.training import History, SampledChoice, Trajectory
from modelyard.errors import InvalidInput, located_at
from modelyard.formats.converter import structure_exactly
from modelyard.formats.json import checked_dumps, without_nulls
from modelyard.formats.trajectories import TOKEN_ID, plain_trajectory, trajectory_of

TEACHER = "teacher_logprobs"
_ITEMS = "messages_and_choices"


@attrs.define(on_setattr=None)
class _Named:
    """A token with its log-probability. Raises `InvalidInput` for one that no model can give it."""

    IGNORED: ClassVar[Any] = ...

    token: str
    logprob: float
    bytes: tuple[int, ...] | None = None
    id: int | None = None

    def __attrs_post_init__(self) -> None:
        if not -1e30 < self.logprob <= 0:
            raise InvalidInput.at("logprob", msg="must be a finite number, 0 or less")
        if (self.id or 0) < 0 or not all(0 <= one < 256 for one in self.bytes or ()):
            raise InvalidInput.at("bytes", msg="must be numbers from 0 to 255, and an id 0 or more")

    @property
    def value(self) -> TokenLogprob:
        spelled = self.token.removeprefix(TOKEN_ID) if self.token.startswith(TOKEN_ID) else ""
        known = int(spelled) if self.id is None and spelled.isascii() and spelled.isdigit() else self.id
        return TokenLogprob(self.token, self.logprob, self.bytes, id=known)


@attrs.define(on_setattr=None)
class _Scored(_Named):
    top_logprobs: tuple[_Named, ...] = ()

    @property
    def value(self) -> TokenLogprob:
        return attrs.evolve(super().value, top=tuple(one.value for one in self.top_logprobs))


@attrs.frozen
class _Logprobs:
    IGNORED: ClassVar[Any] = ...

    content: tuple[_Scored, ...] | None = None


# ---- read --------------------------------------------------------------------------------------------------------


def taught_of(value: Any) -> Trajectory:
    """Read a trajectory. Raises `InvalidInput`, also if a teacher has scored nothing of it."""
    plain = without_nulls(value)
    teachers = [list(_teachers(plain))]
    for number, row in enumerate(_listed(plain, "additional_histories")):
        with located_at("additional_histories", number):
            teachers.append(list(_teachers(row)))
    found = trajectory_of(_without_teachers(plain))
    if not any(one for history in teachers for one in history):
        msg = f"has no choice with {TEACHER}, or with logprobs of the teacher's own answer: nothing is learned from it"
        raise InvalidInput.at(_ITEMS, msg=msg)
    return attrs.evolve(found, histories=tuple(map(_with_teachers, found.histories, teachers)))


def _listed(row: Any, name: str) -> Sequence[Any]:
    found = row.get(name) if isinstance(row, dict) else None
    return found if isinstance(found, list) else ()


def _teachers(row: Any) -> Iterator[tuple[TokenLogprob, ...] | None]:
    for place, item in enumerate(_listed(row, _ITEMS)):
        named = next(
            (name for name in (TEACHER, "logprobs") if isinstance(item, dict) and item.get(name) is not None), None
        )
        if named is None:
            yield None
            continue
        with located_at(_ITEMS, place, named):
            content = structure_exactly(_Logprobs, item[named]).content
        yield None if content is None else tuple(one.value for one in content)


def _without_teachers(row: Any) -> Any:
    if not isinstance(row, dict):
        return row
    left = dict(row)
    if items := _listed(row, _ITEMS):
        left[_ITEMS] = [_without(item, TEACHER) for item in items]
    if further := _listed(row, "additional_histories"):
        left["additional_histories"] = [_without_teachers(one) for one in further]
    return left


def _without(item: Any, name: str) -> Any:
    return {key: one for key, one in item.items() if key != name} if isinstance(item, dict) else item


def _with_teachers(history: History, teachers: Sequence[tuple[TokenLogprob, ...] | None]) -> History:
    items = [
        attrs.evolve(item, teacher=teacher) if isinstance(item, SampledChoice) else item
        for item, teacher in zip(history.items, teachers, strict=True)
    ]
    return attrs.evolve(history, items=tuple(items))


def trajectories_in(row: Any) -> Sequence[Any]:
    """Return the trajectories of a group, or a trajectory as it is."""
    return row["trajectories"] if isinstance(row, Mapping) and isinstance(row.get("trajectories"), list) else [row]


# ---- written -----------------------------------------------------------------------------------------------------


def dump_taught(trajectory: Trajectory) -> bytes:
    plain = plain_trajectory(trajectory)
    rows = [plain, *plain["additional_histories"]]
    for row, history in zip(rows, trajectory.histories, strict=False):
        for item, choice in zip(row[_ITEMS], history.items, strict=True):
            if isinstance(choice, SampledChoice):
                scored = choice.teacher if choice.teacher is not None else choice.logprobs
                item[TEACHER] = None if scored is None else {"content": [*map(_plain, scored)]}
    return checked_dumps(plain) + b"\n"


def _plain(entry: TokenLogprob) -> dict[str, Any]:
    named = {name: getattr(entry, name) for name in ("token", "logprob", "bytes", "id")}
    return {**named, **({"top_logprobs": [*map(_plain, entry.top)]} if entry.top else {})}
