"""`platform.traffic`: training data from what was asked and answered, and the way back."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Any

import attrs

from modelyard.domain.identity import Principal, check_name
from modelyard.domain.models import Model
from modelyard.domain.record import EMPTY
from modelyard.domain.training import Dataset, DatasetName, Example, Preference
from modelyard.errors import InvalidInput, nearest
from modelyard.formats.training_data import DATASETS, read_dataset
from modelyard.platform.models.service import Models
from modelyard.platform.paging import named_place
from modelyard.platform.runtime import Runtime
from modelyard.platform.traffic.kept_rows import KeptRows, preference_between
from modelyard.platform.traffic.redaction import Redaction, TextRedaction
from modelyard.platform.traffic.rows import SOURCES, LeftOut, Source, TrafficReader, TrafficRow
from modelyard.platform.traffic.selection import AnsweredBy, Score, Selection
from modelyard.platform.training.data import keep_version, store_rows, version_of

HELD_OUT = "-held-out"
"""How the name of the dataset of the held-out rows ends."""


@attrs.frozen
class Collected:
    """What was collected: datasets, None for a side without rows, and how much was left out, by the reason."""

    train: Dataset | None
    held_out: Dataset | None
    left_out: Mapping[str, int]

    @property
    def url(self) -> str:
        """The URL of the dataset to train on. Raises `InvalidInput` where nothing was collected."""
        if self.train is None:
            why = ", ".join(f"{reason} {count}" for reason, count in self.left_out.items()) or "nothing was stored"
            raise InvalidInput.at("data", msg=f"has no rows: {why}")
        return self.train.url


@attrs.frozen
class TrainedRow:
    """A row that a checkpoint was trained on: the dataset, the row's number from 0, and what it was made from.

    `sources` are ids of stored completions and responses and references of traced calls; of a preference those of both
    answers.
    """

    step: int
    dataset: str
    row: int
    sources: tuple[str, ...]


class Traffic:
    """What was stored by chat, responses and traces, as training data.

    collected = platform.traffic.collect("answers", model="desk/support", score="up", at_least=1, redact=["email"])
    checkpoint = platform.training.sft("desk/support", collected.url).result()
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    def collect(
        self,
        name: str,
        *,
        model: str | None = None,
        sources: Sequence[Source] = SOURCES,
        metadata: Mapping[str, Any] = EMPTY,
        since: datetime | None = None,
        until: datetime | None = None,
        where: Callable[[TrafficRow], bool] | None = None,
        score: Score | None = None,
        at_least: float | None = None,
        pairs: bool = False,
        redact: Redaction | Sequence[Redaction] = (),
        holdout: float = 0.0,
        limit: int | None = None,
        project: str | None = None,
        entity: str | None = None,
    ) -> Collected:
        """Collect stored answers, the newest first, into the next version of the dataset `name`.

        `model` is the name that was requested, a trained model, or a checkpoint of one ("desk/support:prod"). With a
        `score`, answers below `at_least` and those without one are left out. With `pairs` the rows are preferences:
        of the answers to the same messages the best, if it is good enough, against the worst. `redact` is applied to
        every text before rows are compared; what is not text is left out then. Equal rows are one, which names the
        source of the newest. About the part `holdout` of the conversations becomes the dataset `<name>-held-out`; on
        which side one is depends on how it begins, and on nothing else. Reading ends when `limit` different answers are
        found that are good enough. Without a `project`, completions and responses are those of every project of the
        entity, calls those of the default project, where the datasets are, too. Nothing is written before all is read;
        a dataset is written whole or not at all. Raises `InvalidInput`, `NotFound`, `Forbidden`, `StorageFull`, and
        what a function or judge raises.
        """
        owner, at = named_place(self._runtime, self._principal, entity, project)
        check_name(name, "name")
        _check(sources, at_least, score, pairs, holdout, limit)
        answered = model and self._runtime.store.read(partial(AnsweredBy.of, principal=self._principal, name=model))
        selection = Selection(
            self._runtime, self._principal, answered or None, metadata, since, until, where=where, score=score
        )
        reader = TrafficReader(self._runtime, self._principal, owner, project)
        redaction, left_out = TextRedaction.of(redact), Counter[str]()
        with KeptRows() as kept:
            good = 0
            for row in _chosen(reader, selection, sources, left_out):
                value = None if score is None else selection.value_of(row)
                if redaction.steps and any(_has_files(message) for message in row.messages):
                    left_out["not only text"] += 1
                elif score is not None and value is None:
                    left_out["no score"] += 1
                elif not kept.add(_example(row, redaction), value):
                    left_out["equal"] += 1
                else:
                    good += _is_good(value, at_least)
                    if limit is not None and good >= limit:
                        break
            sides = [
                self._keep((owner, at, name + suffix), _rows(kept, at_least, pairs, part, left_out))
                for part, suffix in (((0.0, holdout), HELD_OUT), ((holdout, 1.0), ""))
            ]
        return Collected(sides[1], sides[0], {reason: count for reason, count in left_out.items() if count})

    def lineage(self, model: Model | str, step: int) -> Iterator[TrainedRow]:
        """Yield the rows of the datasets that a checkpoint, and those before it, were trained on, the nearest first.

        Raises `NotFound`.
        """
        for trained in Models(self._runtime, self._principal).lineage(model, step).steps:
            named = None if trained.data_url is None else DatasetName.parse(trained.data_url)
            dataset = named and self._runtime.store.read(partial(version_of, named=named))
            if dataset and self._principal.scope.covers(dataset.entity, dataset.project):
                with self._runtime.artifacts.open(dataset.artifact) as file:
                    for number, row in enumerate(read_dataset(file)):
                        yield TrainedRow(trained.step, dataset.url, number, row.sources)

    def _keep(self, place: tuple[str, str, str], rows: Iterator[Example | Preference]) -> Dataset | None:
        """Write the dataset of one side, unless it has no rows."""
        for first in rows:
            self._runtime.require_room()
            stored, count = store_rows(self._runtime.artifacts, DATASETS, chain([first], rows))
            return keep_version(self._runtime, place, stored, count)
        return None


# ---- parts of the above ----------------------------------------------------------------------------------------------


def _check(
    sources: Sequence[str], at_least: float | None, score: object, pairs: bool, holdout: float, limit: int | None
) -> None:
    for at, one in enumerate(sources):
        if one not in SOURCES:
            raise InvalidInput.at("sources", at, msg=f"must be one of {', '.join(SOURCES)}{nearest(one, SOURCES)}")
    if score is None and (pairs or at_least is not None):
        raise InvalidInput.at("score", msg="is required where answers are compared", type="missing")
    if not 0 <= holdout < 1:
        raise InvalidInput.at("holdout", msg="must be from 0 to below 1")
    if limit is not None and limit < 1:
        raise InvalidInput.at("limit", msg="must be at least 1")


def _chosen(
    reader: TrafficReader, selection: Selection, sources: Sequence[Source], left_out: Counter[str]
) -> Iterator[TrafficRow]:
    for source in dict.fromkeys(sources):
        for found in reader.rows(source):
            if isinstance(found, LeftOut):
                left_out[found.reason] += 1
                continue
            missed = selection.missed(found)
            row = reader.with_feedback(found) if missed is None and selection.reads_feedback else found
            if missed is None and selection.where is not None and not selection.where(row):
                missed = "where"
            if missed is None:
                yield row
            else:
                left_out[missed] += 1


def _has_files(message: Any) -> bool:
    return isinstance(message.content, tuple) and any(part.type != "text" for part in message.content)


def _example(row: TrafficRow, redaction: TextRedaction) -> Example:
    tools = tuple(map(redaction.tool, row.tools)) if redaction.steps else row.tools
    messages = tuple(map(redaction.message, row.messages)) if redaction.steps else row.messages
    return Example(messages, tools, (row.id,))


def _is_good(score: float | None, at_least: float | None) -> bool:
    return at_least is None or (score is not None and score >= at_least)


def _rows(
    kept: KeptRows, at_least: float | None, pairs: bool, part: tuple[float, float], left_out: Counter[str]
) -> Iterator[Example | Preference]:
    """Yield the rows of one part of the conversations, and count what is left out of it."""
    if not pairs:
        for row in kept.rows():
            if part[0] <= row.share < part[1]:
                if _is_good(row.score, at_least):
                    yield row.example
                else:
                    left_out["score"] += 1
        return
    for answers in kept.prompts():
        best, worst = answers[0], answers[-1]
        if part[0] <= best.share < part[1]:
            if _is_good(best.score, at_least) and best.score != worst.score:
                yield preference_between(best, worst)
                left_out["between"] += len(answers) - 2
            else:
                left_out["not paired"] += len(answers)
