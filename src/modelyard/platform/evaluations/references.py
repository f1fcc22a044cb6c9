"""Namespaces, records, and references that a principal names, checked and resolved (specification 2.3)."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar

import attrs

from modelyard.domain.evaluation.objects import (
    EVALUATION_KINDS,
    LATEST,
    MODEL_KINDS,
    ObjectAlias,
    ObjectKind,
    ObjectRef,
    ObjectVersion,
    RefKind,
    RefMode,
    reference_problem,
    same_scheme,
    version_index,
)
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.identity import Principal
from modelyard.domain.models import Model, ModelName
from modelyard.errors import InvalidInput, NotFound, Problem
from modelyard.platform.catalogue.service import checkpoint_named
from modelyard.platform.paging import get_or_none, iter_index, named_place, unique_texts
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot

# ---- namespaces and records

Namespace = tuple[str, str]


class InNamespace(Protocol):
    @property
    def entity(self) -> str: ...

    @property
    def project(self) -> str: ...


R = TypeVar("R", bound=InNamespace)


@attrs.frozen
class ScopedReader:
    """Reads the records that a principal may see. Others look as if they did not exist."""

    runtime: Runtime
    principal: Principal

    def place(self, project: str | None, entity: str | None) -> Namespace:
        return named_place(self.runtime, self.principal, entity, project)

    def maybe_place(self, project: str | None, entity: str | None) -> Namespace | None:
        return None if project is None else self.place(project, entity)

    def see(self, snapshot: Snapshot, cls: type[R], id: str, place: Namespace | None) -> R | None:
        found = get_or_none(snapshot, cls, id)
        if found is None or not self.principal.scope.covers(found.entity, found.project):
            return None
        return found if place in (None, (found.entity, found.project)) else None

    def find(self, snapshot: Snapshot, cls: type[R], kind: str, id: str, place: Namespace | None) -> R:
        found = self.see(snapshot, cls, id, place)
        if found is None:
            raise NotFound(kind, id)
        return found


# ---- references

MAX_ID = 128

REF_KINDS: Mapping[ObjectKind, frozenset[RefKind]] = {
    ObjectKind.DATASET: EVALUATION_KINDS,
    ObjectKind.EVALUATION: EVALUATION_KINDS,
    ObjectKind.MODEL: MODEL_KINDS,
    ObjectKind.SCORER: MODEL_KINDS,
}
"""The kinds of references to each kind of object: a function that is a model or a scorer is an op."""


def find_version(
    snapshot: Snapshot, namespace: Namespace, kind: ObjectKind, object_id: str, version: str | None
) -> ObjectVersion | None:
    """Return the version of an object by its digest, an alias, `v<n>` or "latest" (also None), deleted or not. The
    latest is the last that is not deleted; if all are deleted, the last."""
    where = (*namespace, kind, object_id)
    if version in (None, LATEST):
        return _latest(snapshot, where)
    assert version is not None
    alias = get_or_none(snapshot, ObjectAlias, *where, version)
    index = version_index(version) if alias is None else alias.index
    if index is not None:
        return snapshot.find(ObjectVersion, "version", *where, index)
    found = snapshot.page(ObjectVersion, "by_digest", *where, version, limit=1, descending=True)
    return found[0] if found else None


def _latest(snapshot: Snapshot, where: tuple[object, ...]) -> ObjectVersion | None:
    newest = snapshot.page(ObjectVersion, "by_object", *where, limit=1, descending=True)
    if not newest or newest[0].deleted_at is None:
        return newest[0] if newest else None
    alive = [
        version for version in iter_index(snapshot, ObjectVersion, "by_object", *where) if version.deleted_at is None
    ]
    return alive[-1] if alive else newest[0]


@attrs.frozen
class References:
    mode: RefMode = attrs.field(converter=RefMode)
    principal: Principal

    def check(self, snapshot: Snapshot, **given: tuple[ObjectKind, str]) -> None:
        found = [self.problem(snapshot, (field,), kind, text) for field, (kind, text) in given.items()]
        problems = [problem for problem in found if problem is not None]
        if problems:
            raise InvalidInput(problems)

    def check_run(self, snapshot: Snapshot, run: EvaluationRun) -> None:
        problems = [
            self.problem(snapshot, ("evaluation",), ObjectKind.EVALUATION, run.evaluation),
            self.problem(snapshot, ("model",), ObjectKind.MODEL, run.model),
            self._source_problem(run.source_evaluation_run_id, run.source_known),
        ]
        if found := [problem for problem in problems if problem is not None]:
            raise InvalidInput(found)

    def _source_problem(self, source: str | None, known: bool | None) -> Problem | None:
        loc = ("source_evaluation_run_id",)
        if source is not None and not (len(source) <= MAX_ID and source.isprintable()):
            return Problem(loc, f"must be the id of a run, at most {MAX_ID} printable characters")
        if known is False and self.mode is RefMode.RESOLVE:
            return Problem(loc, "must be the id of an existing run")
        return None

    def problem(self, snapshot: Snapshot, loc: tuple[str | int, ...], kind: ObjectKind, text: str) -> Problem | None:
        wrong = reference_problem("", text, REF_KINDS[kind], self.mode)
        if wrong is not None:
            return Problem(loc, wrong.msg, wrong.type)
        if self.mode is not RefMode.RESOLVE or self._holds(snapshot, kind, text):
            return None
        return Problem(loc, f"must be the reference of {_NOUNS[kind]} that exists", "reference")

    def _holds(self, snapshot: Snapshot, kind: ObjectKind, text: str) -> bool:
        ref = ObjectRef.parse(text)
        if ref is None or not self.principal.scope.covers(ref.entity, ref.project):
            return False
        if kind is ObjectKind.MODEL and ref.kind is RefKind.OBJECT and is_trained(snapshot, ref):
            return True
        stored = ObjectKind.OP if ref.kind is RefKind.OP else kind
        found = find_version(snapshot, (ref.entity, ref.project), stored, ref.name, ref.version)
        return found is not None and found.deleted_at is None


_NOUNS: Mapping[ObjectKind, str] = {
    ObjectKind.DATASET: "a dataset",
    ObjectKind.EVALUATION: "an evaluation",
    ObjectKind.MODEL: "a model, or of a checkpoint,",
    ObjectKind.SCORER: "a scorer",
}


def is_trained(snapshot: Snapshot, ref: ObjectRef) -> bool:
    named = ModelName.parse(f"{ref.entity}/{ref.project}/{ref.name}:{ref.version or LATEST}")
    if named is None:
        return False
    model = snapshot.find(Model, "name", named.entity, named.project, named.name)
    if model is None or (named.step is None and named.alias is None):
        return model is not None
    return checkpoint_named(snapshot, model, named) is not None


def pinned(snapshot: Snapshot, principal: Principal, ref: ObjectRef) -> ObjectRef:
    """Pin a reference to the digest of its version; it is unchanged if that version is not visible."""
    if ref.version is None or not principal.scope.covers(ref.entity, ref.project):
        return ref
    found = find_version(snapshot, (ref.entity, ref.project), ObjectKind.EVALUATION, ref.name, ref.version)
    return ref if found is None else attrs.evolve(ref, version=found.digest)


def versions_of(snapshot: Snapshot, principal: Principal, ref: ObjectRef) -> list[str]:
    if not principal.scope.covers(ref.entity, ref.project):
        return []
    where = (ref.entity, ref.project, ObjectKind.EVALUATION, ref.name)
    found = iter_index(snapshot, ObjectVersion, "by_object", *where)
    return [f"v{version.index}" for version in found if version.deleted_at is None]


def run_filter(
    evaluations: Iterable[str], models: Iterable[str], sources: Iterable[str]
) -> Callable[[EvaluationRun], bool]:
    of_evaluation = frozenset(map(same_scheme, unique_texts("evaluations", evaluations)))
    of_model = frozenset(map(same_scheme, unique_texts("models", models)))
    of_source = frozenset(unique_texts("sources", sources))

    def matches(run: EvaluationRun) -> bool:
        return (
            (not of_evaluation or same_scheme(run.evaluation) in of_evaluation)
            and (not of_model or same_scheme(run.model) in of_model)
            and (not of_source or run.source_evaluation_run_id in of_source)
        )

    return matches
