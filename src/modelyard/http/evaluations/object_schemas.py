"""Datasets, scorers, models, evaluations and ops as the clients of the evaluation interface know them."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any

import attrs

from modelyard.domain.evaluation.objects import ObjectKind, ObjectVersion
from modelyard.domain.evaluation.scorer_rules import RULES
from modelyard.errors import InvalidInput, Problem
from modelyard.formats.constraints import Length, Within
from modelyard.formats.converter import MAX_PROBLEMS, structure
from modelyard.formats.json_stream import JsonReader
from modelyard.http.body_schemas import EvaluationRef, ModelRef

_name = Length(1, 512)
_text = Length(0, 20_000)
_ROWS = "rows"
_IDENTIFYING = {"schema": {"pattern": r"[\w\s/-]"}}
"""The characters of a name of which an id can be made."""

_SCORER = {"described_as": reduce(or_, RULES.values())}


# ---- requests


@attrs.frozen
class DatasetCreate:
    """The body that creates a dataset, or its next version."""

    rows: tuple[Mapping[str, Any], ...]
    name: str = attrs.field(default="dataset", validator=_name, metadata=_IDENTIFYING)
    description: str | None = attrs.field(default=None, validator=_text)


@attrs.frozen
class ScorerCreate:
    """The body that creates a scorer, which has at least one of `scorer` and `op_source_code`.

    `scorer` is declarative: its `type` (`exact_match`, `contains`, `one_of`, `token_f1` and others, or
    `llm_judge`) and the fields of that type. Evaluations run it. Source code is kept and shown, never run.
    """

    name: str = attrs.field(validator=_name, metadata=_IDENTIFYING)
    op_source_code: str | None = None
    description: str | None = attrs.field(default=None, validator=_text)
    scorer: Mapping[str, Any] | None = attrs.field(default=None, metadata=_SCORER)

    def __attrs_post_init__(self) -> None:
        if self.op_source_code is None and self.scorer is None:
            raise InvalidInput.at("op_source_code", msg="is required where there is no scorer", type="missing")


@attrs.frozen
class ModelVersionCreate:
    """The body that creates a model of the evaluation interface. Its source code is kept and shown, never run."""

    name: str = attrs.field(validator=_name, metadata=_IDENTIFYING)
    source_code: str
    attributes: Mapping[str, Any] | None = None
    description: str | None = attrs.field(default=None, validator=_text)


@attrs.frozen
class EvaluationCreate:
    """The body that creates an evaluation: a dataset and scorers, by their references."""

    name: str = attrs.field(validator=_name, metadata=_IDENTIFYING)
    dataset: EvaluationRef
    scorers: tuple[ModelRef, ...] | None = attrs.field(default=None, validator=Length(0, 1000))
    trials: int = attrs.field(default=1, validator=Within(1, 1000))
    description: str | None = attrs.field(default=None, validator=_text)
    evaluation_name: str | None = attrs.field(default=None, validator=_name)
    eval_attributes: Mapping[str, Any] | None = None


@attrs.frozen
class OpCreate:
    """The body that creates an op. Its source code is kept and shown, never run."""

    name: str = attrs.field(default="op", validator=_name, metadata=_IDENTIFYING)
    source_code: str = ""


def content_of(body: Any) -> dict[str, Any]:
    return {name: value for name, value in attrs.asdict(body, recurse=False).items() if name != "name"}


# ---- datasets, which may be large


def dataset_request(chunks: Iterable[bytes]) -> DatasetCreate:
    rest: dict[str, Any] = {}
    problems: list[Problem] = []
    for number, row in _members(chunks, rest):
        if not isinstance(row, dict) and len(problems) < MAX_PROBLEMS:
            problems.append(Problem(("body", _ROWS, number), "must be an object", "dict_type"))
    try:
        request = structure(DatasetCreate, rest, "body")
    except InvalidInput as wrong:
        raise InvalidInput([*wrong.problems, *problems]) from None
    if problems:
        raise InvalidInput(problems)
    return request


def dataset_rows(chunks: Iterable[bytes]) -> Iterator[Any]:
    return (row for _, row in _members(chunks, {}))


def _members(chunks: Iterable[bytes], rest: dict[str, Any]) -> Iterator[tuple[int, Any]]:
    reader = JsonReader(chunks, at=("body",))
    for name in reader.members():
        if name == _ROWS and not reader.is_null():
            rest[name] = []
            for number in reader.elements(name):
                yield number, reader.take(name, number)
        else:
            rest[name] = reader.take(name)
    reader.end()


# ---- responses


@attrs.frozen
class VersionCreated:
    """The answer to a creation: the new version, or the one that has this content."""

    digest: str
    object_id: str
    version_index: int


@attrs.frozen
class ScorerCreated(VersionCreated):
    """The answer to the creation of a scorer, with its reference."""

    scorer: str


@attrs.frozen
class ModelVersionCreated(VersionCreated):
    """The answer to the creation of a model, with its reference."""

    model_ref: str


@attrs.frozen
class EvaluationCreated(VersionCreated):
    """The answer to the creation of an evaluation, with its reference."""

    evaluation_ref: str


@attrs.frozen
class VersionObject:
    object_id: str
    digest: str
    version_index: int
    created_at: datetime


@attrs.frozen
class DatasetVersionObject(VersionObject):
    """A version of a dataset. `rows` is the reference of its table."""

    name: str
    description: str | None
    rows: str


@attrs.frozen
class ScorerObject(VersionObject):
    """A version of a scorer. `score_op` is the reference of the op that holds its source code, or of itself where it
    needs none. `scorer` is there for a declarative one.
    """

    name: str
    description: str | None
    score_op: str
    scorer: Mapping[str, Any] | None = attrs.field(default=None, metadata=_SCORER)


@attrs.frozen
class ModelVersionObject(VersionObject):
    """A version of a model."""

    name: str
    description: str | None
    source_code: str
    attributes: Mapping[str, Any] | None


@attrs.frozen
class EvaluationObject(VersionObject):
    """A version of an evaluation. It has no ops of its own."""

    name: str
    description: str | None
    dataset: str
    scorers: tuple[str, ...]
    trials: int
    evaluation_name: str | None
    evaluate_op: None
    predict_and_score_op: None
    summarize_op: None


@attrs.frozen
class OpObject(VersionObject):
    """A version of an op."""

    code: str


_CREATED: Mapping[ObjectKind, Any] = {
    ObjectKind.SCORER: ScorerCreated,
    ObjectKind.MODEL: ModelVersionCreated,
    ObjectKind.EVALUATION: EvaluationCreated,
}
"""The answers to a creation that have the reference of the new version; datasets and ops have none."""


def created_object(version: ObjectVersion) -> VersionCreated:
    place, created = (version.digest, version.object_id, version.index), _CREATED.get(version.kind)
    return VersionCreated(*place) if created is None else created(*place, str(version.ref))


def version_object(version: ObjectVersion) -> VersionObject:
    place, content = (version.object_id, version.digest, version.index, version.created_at), version.content
    if version.kind is ObjectKind.OP:
        return OpObject(*place, content.get("source_code", ""))
    named = (*place, content.get("name", version.object_id), content.get("description"))
    if version.kind is ObjectKind.DATASET:
        return DatasetVersionObject(*named, str(version.rows_ref))
    if version.kind is ObjectKind.SCORER:
        return ScorerObject(*named, content.get("score_op", str(version.ref)), content.get("scorer"))
    if version.kind is ObjectKind.MODEL:
        return ModelVersionObject(*named, content.get("source_code", ""), content.get("attributes"))
    return EvaluationObject(
        *named,
        dataset=content.get("dataset", ""),
        scorers=content.get("scorers", ()),
        trials=content.get("trials", 1),
        evaluation_name=content.get("evaluation_name"),
        evaluate_op=None,
        predict_and_score_op=None,
        summarize_op=None,
    )
