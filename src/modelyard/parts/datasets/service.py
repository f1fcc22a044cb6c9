"""The data sets that a principal may see: their versions, their rows, and splits of them."""

import json
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import attrs

from modelyard.domain.identity import Principal, check_name
from modelyard.domain.record import Order, in_notebook
from modelyard.domain.training import Dataset, DatasetName, Example, Preference, Trajectory
from modelyard.errors import InvalidInput, NotFound, located_at
from modelyard.formats.jsonl import in_chunks, read_rows
from modelyard.formats.training_data import DATASETS
from modelyard.parts.datasets.splitting import check_part, field_of, place_of, sides
from modelyard.parts.readers.files import read_with_source
from modelyard.platform.artifacts import remove_loose
from modelyard.platform.listing import Cursor, Listing
from modelyard.platform.paging import cursor_at, get_or_none, index_listing, listed_entity, named_place
from modelyard.platform.runtime import Runtime
from modelyard.platform.training.data import DatasetRows, any_form, keep_version, rows_of, version_of
from modelyard.protocols import Snapshot

Splittable = Dataset | DatasetRows | str | os.PathLike[str]
"""A version of a data set, its name or URL; rows; or the path of a file."""


@attrs.frozen
class DatasetSplit:
    """The two sides of a split, which share no group of rows."""

    train: Dataset
    held_out: Dataset
    _repr_html_ = in_notebook


class Datasets:
    """The data sets that were uploaded or collected. Each version has a URL, by which training names it.

    for row in platform.datasets.rows("desk/answers"):
        print(row["messages"])
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    # ---- reading

    def list(self, *, project: str | None = None, entity: str | None = None, order: Order = "desc") -> Listing[Dataset]:
        """List versions, the newest first: all that the caller may see, or those of an entity or a project.

        Raises `Forbidden`.
        """
        entity, scope = listed_entity(self._principal, entity, project), self._principal.scope
        index, *where = ("all",) if entity is None else ("by_entity", entity)

        def keep(one: Dataset) -> bool:
            return project in (None, one.project) and scope.covers(one.entity, one.project)

        place = partial(self._place, index)
        return index_listing(self._runtime, Dataset, index, *where, place=place, order=order, keep=keep)

    def get(self, dataset: Dataset | str) -> Dataset:
        """Return a version by its URL or name: "name", "project/name" or "entity/project/name", the newest unless it
        ends in ":v0". Raises `NotFound`, `Forbidden`, `InvalidInput`.
        """
        if isinstance(dataset, Dataset):
            dataset = dataset.url
        named = self._named(dataset)
        self._principal.require(named.entity, named.project)
        found = self._runtime.store.read(partial(version_of, named=named))
        if found is None:
            raise NotFound("Dataset", dataset)
        return found

    def rows(self, dataset: Dataset | str) -> Iterator[Mapping[str, Any]]:
        """Yield the rows of a version as training reads them, one at a time. Raises as `get`."""
        return self._rows(self.get(dataset))

    def _rows(self, found: Dataset) -> Iterator[Mapping[str, Any]]:
        with self._runtime.artifacts.open(found.artifact) as file:
            yield from read_rows(file)

    # ---- splitting

    def split(
        self,
        data: Splittable,
        *,
        held_out: float = 0.1,
        seed: int = 0,
        group: str | None = None,
        name: str | None = None,
        project: str | None = None,
        entity: str | None = None,
    ) -> DatasetSplit:
        """Split rows in two data sets, "<name>-train" and "<name>-held-out", which is about this part of the rows.

        Equal rows are on one side. With `group`, so are all rows with the same value in that field, such as
        "metadata.user": a field of the rows as they are given, or of a data set's as they are stored. A row's side
        depends on its group and the `seed` alone, so it stays where it is when rows are added. `name`, by default that
        of the data set or of the file, is the first part of both names. The same split again makes no new version.
        Raises `InvalidInput` for rows of one group alone, `NotFound`, `Forbidden`, `StorageFull`.
        """
        check_part(held_out)
        if isinstance(data, str) and not os.path.exists(data):
            data = self.get(data)
        places = array("d")
        if isinstance(data, Dataset):
            for line, row in enumerate(self._rows(data), 1):
                with located_at("line", line):
                    places.append(place_of(row if group is None else field_of(row, group), seed))
            return self._split(data.artifact, places, held_out, (data.entity, data.project, name or data.name))
        self._runtime.require_room()
        home = (*named_place(self._runtime, self._principal, entity, project), check_name(name or _stem(data), "name"))

        def lines() -> Iterator[bytes]:
            for number, (row, value) in enumerate(self._read(data)):
                line = DATASETS.dump(value)
                with located_at("data", number):
                    places.append(
                        place_of(json.loads(line) if group is None else field_of(_plain(row, line), group), seed)
                    )
                yield line

        stored = self._runtime.artifacts.put(in_chunks(lines()))
        with remove_loose(self._runtime.artifacts, [stored.name]):
            return self._split(stored.name, places, held_out, home)

    def _read(
        self, data: DatasetRows | str | os.PathLike[str]
    ) -> Iterator[tuple[Any, Example | Preference | Trajectory]]:
        """Yield rows, each as it is given and its value."""
        if isinstance(data, str | os.PathLike):
            if self._principal.scope.entity is not None:
                raise InvalidInput.at("data", msg="only the host may name a file; give a data set or rows")
            with open(data, "rb") as file:
                yield from read_with_source(DATASETS, file)
            return
        last: list[Any] = []
        rows = any_form(self._runtime.parts, DATASETS)
        for value in rows_of(rows, _remembered(data, last)):
            yield last.pop(), value

    def _split(
        self, artifact: str, places: Sequence[float], held_out: float, home: tuple[str, str, str]
    ) -> DatasetSplit:
        self._principal.require(*home[:2])
        made = [self._side(artifact, places, held_out, wanted, home) for wanted in (False, True)]
        return DatasetSplit(*made)

    def _side(
        self, artifact: str, places: Sequence[float], held_out: float, wanted: bool, home: tuple[str, str, str]
    ) -> Dataset:
        began = self._runtime.clock.monotonic()
        with self._runtime.artifacts.open(artifact) as file:
            chosen = (line for line, is_out in zip(file, sides(places, held_out), strict=True) if is_out is wanted)
            stored = self._runtime.artifacts.put(in_chunks(chosen))
        rows = sum(is_out is wanted for is_out in sides(places, held_out))
        entity, project, name = home
        named = f"{name}-{'held-out' if wanted else 'train'}"
        return keep_version(self._runtime, (entity, project, check_name(named, "name")), stored, rows, began)

    # ---- steps

    def _named(self, dataset: str) -> DatasetName:
        url = dataset
        if not isinstance(dataset, str):
            raise InvalidInput.at("dataset", msg="must be a data set, its name or its URL")
        if "://" not in dataset:
            own = (f"{self._principal.entity}/{self._runtime.project}/", f"{self._principal.entity}/", "")
            url = f"modelyard:///{own[min(dataset.count('/'), 2)]}{dataset}"
        named = DatasetName.parse(url)
        if named is None:
            raise InvalidInput.at(
                "dataset", msg="must be a name, [[entity/]project/]name[:v0], or the URL of a data set"
            )
        return named

    def _place(self, index: str, id: str, snapshot: Snapshot) -> Cursor:
        found = get_or_none(snapshot, Dataset, id)
        if found is None or not self._principal.scope.covers(found.entity, found.project):
            raise NotFound("Dataset", id)
        return cursor_at(Dataset, index, found)


def _remembered(data: Iterable[Any], last: list[Any]) -> Iterator[Any]:
    for row in data:
        last.append(row)
        yield row


def _plain(row: Any, line: bytes) -> Mapping[str, Any]:
    """Return the fields of a row as it is given: those of a mapping, or of a value's line."""
    plain: Mapping[str, Any] = row if isinstance(row, Mapping) else json.loads(line)
    return plain


def _stem(data: object) -> str:
    if isinstance(data, str | os.PathLike):
        return os.path.basename(os.fspath(data)).partition(".")[0]
    raise InvalidInput.at("name", msg="is required: it is the first part of the names of the two data sets")
