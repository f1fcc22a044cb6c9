"""Training data on their way into the artifact store: checked row by row, kept as JSON Lines, never all in memory."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from io import BytesIO
from itertools import chain, islice
from typing import Any, TypeVar

import attrs

from modelyard.domain.catalogue import CatalogueEntry
from modelyard.domain.completion import TEMPLATE, TEMPLATE_WITHOUT_EFFECT, Message, Role
from modelyard.domain.training import (
    Dataset,
    DatasetName,
    Example,
    History,
    Preference,
    SampledChoice,
    Trajectory,
    TrajectoryGroup,
)
from modelyard.domain.training_config import TrainingConfig
from modelyard.errors import InvalidInput, Problem, located_at
from modelyard.formats.converter import unstructure
from modelyard.formats.taught import trajectories_in
from modelyard.formats.training_data import RowFormat, read_groups, says_nothing
from modelyard.formats.trajectories import trajectory_of
from modelyard.part import Part
from modelyard.platform.artifacts import remove_unless_recorded
from modelyard.platform.catalogue.service import offered
from modelyard.platform.chat.capability_checks import modality_of
from modelyard.platform.owned import store_texts
from modelyard.platform.runtime import Runtime
from modelyard.protocols import ArtifactStore, Snapshot, StoredArtifact, Tx

T = TypeVar("T")
Row = TypeVar("Row", bound=Example | Preference)

ExampleData = Iterable[Example | Mapping[str, Any]]
PreferenceData = Iterable[Preference | Mapping[str, Any]]
TaughtData = Iterable[Trajectory | TrajectoryGroup | Mapping[str, Any]]
DatasetRows = ExampleData | PreferenceData | TaughtData | Iterable[Example | Preference | Trajectory]
GroupData = Iterable[TrajectoryGroup | Mapping[str, Any]]


def rows_of(rows: RowFormat[T], data: Iterable[T | Mapping[str, Any]]) -> Iterator[T]:
    return (_value(rows, number, row) for number, row in enumerate(data))


def _value(rows: RowFormat[T], number: int, row: T | Mapping[str, Any]) -> T:
    with located_at("data", number):
        if isinstance(row, rows.value):
            return _read_back(rows, row)
        return rows.of(unstructure(row))  # callers may use tuples and any mapping


def _read_back(rows: RowFormat[T], row: T) -> T:
    """Return a value of the host's as the trainer will read it. The last line is the row; what a group has before it
    are its trajectories."""
    written = rows.dump(row)
    last = written.count(b"\n")
    try:
        (found,) = rows.read(BytesIO(written))
    except InvalidInput as error:
        lines = [(one, int(one.loc[1])) for one in error.problems]
        places = [(one, ("trajectories", line - 1) if line < last else ()) for one, line in lines]
        raise InvalidInput([attrs.evolve(one, loc=(*place, *one.loc[2:])) for one, place in places]) from None
    return found


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


def any_form(parts: Iterable[Part], rows: RowFormat[Any]) -> RowFormat[Any]:
    """Return a format that also reads every form of its rows that the parts know."""
    for part in parts:
        rows = rows if part.row_formats is None else part.row_formats()(rows)
    return rows


def each_trajectory(data: TaughtData) -> Iterator[Trajectory | Mapping[str, Any]]:
    """Yield trajectories, those of a group one by one."""
    for one in data:
        yield from one.trajectories if isinstance(one, TrajectoryGroup) else trajectories_in(one)


# ---- what a base model reads -------------------------------------------------------------------------------------

_Place = tuple[str | int, ...]
_Turn = tuple[_Place, Message, bool]
"""A message, and whether it is trained."""

_PARTS = ("image_url", "input_audio", "video_url", "file")


@attrs.frozen
class BaseModelCheck:
    """Checks that a base model can read what rows hold, as a chat with it does: the modalities of its entry, and tools,
    reasoning and variables of its template if it has them. What was sampled is trained by its ids, whatever it was
    asked."""

    entry: CatalogueEntry
    tools: bool
    reasoning: bool
    template: bool
    config: TrainingConfig | None = None

    @classmethod
    def of(cls, runtime: Runtime, base_model: str, config: TrainingConfig | None = None) -> "BaseModelCheck | None":
        """Return the check of a base model; None for one that is not served here, so that only its trainer knows."""
        entry = offered(runtime).get(base_model)
        able = None if entry is None else runtime.backend.capabilities(base_model)
        if entry is None or able is None:
            return None
        return cls(entry, able.tools, able.reasoning, TEMPLATE in able.parameters, config)

    @property
    def marks(self) -> Sequence[bytes]:
        """One of these is in every line that may be refused."""
        names = [name for name in _PARTS if self._refuses(name)] + ([] if self.tools else ["tools", "tool_calls"])
        names += ([] if self.reasoning else ["reasoning_content"]) + ([] if self.template else [TEMPLATE])
        nothing = [b'"content":null', b'"content":[]'] if self._by_text else []
        return [*nothing, *(b'"%b"' % name.encode() for name in names)]

    @property
    def _by_text(self) -> bool:
        return getattr(self.config, "allow_training_without_logprobs", False)

    def on(self, rows: RowFormat[Any], marks: Sequence[bytes] = ()) -> RowFormat[Any]:
        """Return a format with this check, as `RowFormat.checked` does."""
        if rows.value is Trajectory and not marks:
            return attrs.evolve(rows.checked(self.trajectory), read=lambda file: map(self.trajectory, rows.read(file)))
        return rows.checked(self.trajectory if rows.value is Trajectory else self, marks)

    def __call__(self, row: Row) -> Row:
        """Return the row. Raises `InvalidInput`."""
        turns: list[_Turn] = [(("messages", number), message, False) for number, message in enumerate(row.messages)]
        if isinstance(row, Preference):
            turns += [(("chosen",), row.chosen, True), (("rejected",), row.rejected, True)]
        else:
            for number in row.trained(getattr(self.config, "assistant_turns", "all")):
                turns[number] = (*turns[number][:2], True)
        self._require(turns, [("tools",)] if row.tools else [])
        unread = [] if self.template else [name for name in row.template if name not in TEMPLATE_WITHOUT_EFFECT]
        if unread:
            msg = f"{self.entry.id} has no template that reads it; leave it out"
            raise InvalidInput([Problem((TEMPLATE, name), msg) for name in unread])
        return row

    def trajectory(self, one: Trajectory) -> Trajectory:
        """Return the trajectory. Raises `InvalidInput`."""
        places = [(), *(("additional_histories", number) for number in range(len(one.histories) - 1))]
        read = list(map(self._turns, places, one.histories))
        tools = [
            (*at, "tools") for at, of, turns in zip(places, one.histories, read, strict=True) if of.tools and turns
        ]
        self._require(chain.from_iterable(read), tools)
        return one

    def _turns(self, place: _Place, history: History) -> list[_Turn]:
        """Return what is trained of a history, and what is read: all before an answer without the ids of its prompt."""
        found, read = list[_Turn](), 0
        for number, item in enumerate(history.items):
            choice = item if isinstance(item, SampledChoice) else SampledChoice(item)
            at = (*place, "messages_and_choices", number, *(("message",) if choice is item else ()))
            by_text = choice.logprobs is None and self._by_text and choice.message.role is Role.ASSISTANT
            if by_text and not choice.token_ids and says_nothing(choice.message):
                raise InvalidInput.at(*at, "content", msg="is required of an answer that is trained by its text")
            found.append((at, choice.message, by_text or choice.logprobs is not None))
            read = number + 1 if found[-1][2] and not choice.prompt_token_ids else read
        return [turn for number, turn in enumerate(found) if number < read or turn[2]]

    def _require(self, turns: Iterable[_Turn], tools: Iterable[_Place]) -> None:
        problems = [problem for turn in turns for problem in self._problems(*turn)]
        if not self.tools:
            problems += [Problem(place, f"{self.entry.id} takes no tools; leave them out") for place in tools]
        if problems:
            raise InvalidInput(problems)

    def _problems(self, place: _Place, message: Message, trained: bool) -> Iterator[Problem]:
        for number, part in enumerate(message.content if isinstance(message.content, tuple) else ()):
            if part.type != "text" and self._refuses(part.type):
                yield Problem((*place, "content", number), f"{self.entry.id} does not take {part.type}")
        if message.tool_calls and not self.tools:
            yield Problem((*place, "tool_calls"), f"{self.entry.id} calls no tools; leave out the row")
        if message.reasoning and trained and not self.reasoning:
            yield Problem((*place, "reasoning_content"), f"{self.entry.id} writes no reasoning; leave it out")

    def _refuses(self, part: str) -> bool:
        return modality_of(part) not in self.entry.input_modalities


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


def keep_version(
    runtime: Runtime, place: tuple[str, str, str], stored: StoredArtifact, rows: int, began: float
) -> Dataset:
    """Make stored rows the next version of the named dataset, or find the version that has them; else they are removed.
    Raises `InvalidInput` for no rows, and as `unless_deleted`."""
    with remove_unless_recorded(runtime.artifacts, stored.name):
        check_not_empty(rows)
        requested = Dataset(
            runtime.ids(), *place, 0, stored.name, rows, stored.size, stored.digest, runtime.clock.now()
        )
        dataset = store_texts(runtime, place[0], partial(add_version, requested=requested), began)
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


def check_groups(artifacts: ArtifactStore, stored: StoredArtifact, check: BaseModelCheck | None) -> None:
    """Raise `InvalidInput`, at ("data", <number of the group>, ...), for what the base model cannot read."""
    marks = () if check is None else check.marks
    with artifacts.open(stored.name) as file:
        if check is None or not any(mark in line for line in file for mark in marks):
            return
    with artifacts.open(stored.name) as file:
        for number, group in enumerate(read_groups(file)):
            for member, one in enumerate(group.trajectories):
                with located_at("data", number, "trajectories", member):
                    check.trajectory(one)


def trajectory_reader(parts: Iterable[Part], trained: bool = False) -> Callable[[Any], Trajectory]:
    """Return what reads trajectories in any form that the parts know."""
    readers = (part.trajectories() for part in parts if part.trajectories is not None)
    return next((partial(one, trained=trained) for one in readers), trajectory_of)


def readable_rows(
    artifacts: ArtifactStore, dataset: Dataset, rows: RowFormat[Any], check: BaseModelCheck | None
) -> int:
    """Count the rows of a dataset. Raises `InvalidInput` naming the line at which it is not of this format, or which
    the base model cannot read. The rows of a checked dataset are of one format: that of the first."""
    whole = rows if check is None else check.on(rows)
    try:
        with artifacts.open(dataset.artifact) as file:
            found = sum(1 for _ in islice(whole.read(file), 1 if dataset.rows else None))
        if dataset.rows and check is not None and check.marks:
            with artifacts.open(dataset.artifact) as file:
                for _ in check.on(rows, check.marks).read(file):
                    pass
    except InvalidInput as wrong:
        raise wrong.below("training_data_url") from None
    return dataset.rows or found
