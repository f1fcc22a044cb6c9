"""Tags and notes on jobs, evaluation runs, models and checkpoints."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import attrs

from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.identity import Principal
from modelyard.domain.job import Job, JobKind
from modelyard.domain.models import Checkpoint, Model, ModelName
from modelyard.domain.record import Order
from modelyard.errors import InvalidInput, NotFound
from modelyard.parts.annotations.records import AnnotatedKind, Annotation, checked_note, checked_tags
from modelyard.platform.catalogue.service import checkpoint_named
from modelyard.platform.checkpoints.lookup import named_model
from modelyard.platform.listing import Listing
from modelyard.platform.paging import get_or_none, index_listing, listed_entity, remove_if_present
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

_OF_RUNS = frozenset({JobKind.EVALUATE, JobKind.RESCORE})

_KINDS: tuple[tuple[AnnotatedKind, type[Job | EvaluationRun | Model | Checkpoint]], ...] = (
    (AnnotatedKind.JOB, Job),
    (AnnotatedKind.RUN, EvaluationRun),
    (AnnotatedKind.MODEL, Model),
    (AnnotatedKind.CHECKPOINT, Checkpoint),
)


class Annotations:
    """The tags and notes of what a principal may see.

    A subject is the id of a job, an evaluation run, a model or a checkpoint; or the name of a model, "project/name", or
    of one of its checkpoints, "project/name:step3" or "project/name:prod". An evaluation's job stands for its run.

        platform.annotations.add_tags("bots/support:step3", "baseline")
        platform.annotations.set(job.id, tags=["lr sweep"], note="the rate of the paper")
        [one.subject for one in platform.annotations.list(kind="job", tag="lr sweep")]
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    def get(self, subject: str) -> Annotation:
        """Return the tags and the note of a subject, which may have neither. Raises `NotFound`, `Forbidden`."""
        return self._runtime.store.read(partial(self._found, subject))

    def of(self, ids: Iterable[str]) -> Mapping[str, Annotation]:
        """Return the annotations of these jobs, runs, models or checkpoints, by id. The ids are not looked up.

        An evaluation's job has no annotation: its run has it.
        """

        def found(snapshot: Snapshot) -> Mapping[str, Annotation]:
            every = (get_or_none(snapshot, Annotation, one) for one in ids)
            seen = (one for one in every if one and self._principal.scope.covers(one.entity, one.project))
            return {one.subject: one for one in seen}

        return self._runtime.store.read(found)

    def set(self, subject: str, *, tags: Iterable[str] | None = None, note: str | None = None) -> Annotation:
        """Replace the tags, the note, or both; None leaves them as they are. Raises `InvalidInput`, `NotFound`."""
        chosen = None if tags is None else checked_tags(tags)
        text = None if note is None else checked_note(note)
        return self._change(
            subject,
            lambda old: attrs.evolve(
                old, tags=old.tags if chosen is None else chosen, note=old.note if text is None else text
            ),
        )

    def add_tags(self, subject: str, *tags: str) -> Annotation:
        """Add tags to the present ones. Raises `InvalidInput`, `NotFound`."""
        new = checked_tags(tags)
        return self._change(subject, lambda old: attrs.evolve(old, tags=checked_tags((*old.tags, *new))))

    def remove_tags(self, subject: str, *tags: str) -> Annotation:
        """Remove tags; a missing tag changes nothing. Raises `NotFound`."""
        return self._change(
            subject, lambda old: attrs.evolve(old, tags=tuple(one for one in old.tags if one not in tags))
        )

    def list(
        self,
        *,
        kind: AnnotatedKind | str = AnnotatedKind.RUN,
        tag: str | None = None,
        text: str | None = None,
        project: str | None = None,
        entity: str | None = None,
        order: Order = "asc",
    ) -> Listing[Annotation]:
        """List the annotations of one kind, in the order of their ids, thus of creation.

        `tag` keeps subjects with this tag, `text` subjects with this text in a tag or the note. Raises `Forbidden`,
        `InvalidInput`.
        """
        if kind not in [*AnnotatedKind]:
            raise InvalidInput.at("kind", msg=f"must be one of {', '.join(AnnotatedKind)}")
        entity = listed_entity(self._principal, entity, project)
        where = ("all", AnnotatedKind(kind)) if entity is None else ("by_kind", entity, AnnotatedKind(kind))

        def keep(one: Annotation) -> bool:
            fits = (tag is None or tag in one.tags) and (text is None or one.has(text))
            return fits and project in (None, one.project) and self._principal.scope.covers(one.entity, one.project)

        return index_listing(self._runtime, Annotation, *where, place=lambda after, _: (after,), order=order, keep=keep)

    def _change(self, subject: str, change: Callable[[Annotation], Annotation]) -> Annotation:
        now = self._runtime.clock.now()

        def step(tx: Tx) -> Annotation:
            old = self._found(subject, tx)
            new = change(old)
            if (new.tags, new.note) == (old.tags, old.note):
                return old
            new = attrs.evolve(new, updated_at=now if new.tags or new.note else None)
            remove_if_present(tx, Annotation, old.subject)
            if new.updated_at is not None:
                tx.add(new)
            return new

        return self._runtime.store.transact(step)

    def _found(self, subject: str, snapshot: Snapshot) -> Annotation:
        kind, found = self._named(snapshot, subject) if "/" in subject else self._of_id(snapshot, subject)
        if not self._principal.scope.covers(found.entity, found.project):
            raise NotFound("Subject", subject)
        stored = get_or_none(snapshot, Annotation, found.id)
        return stored or Annotation(found.id, kind, found.entity, found.project)

    def _of_id(self, snapshot: Snapshot, id: str) -> tuple[AnnotatedKind, Job | EvaluationRun | Model | Checkpoint]:
        for kind, cls in _KINDS:
            found = get_or_none(snapshot, cls, id)
            if isinstance(found, Job) and found.kind in _OF_RUNS:
                run = get_or_none(snapshot, EvaluationRun, found.subject)
                if run is not None:
                    return AnnotatedKind.RUN, run
            if found is not None:
                return kind, found
        raise NotFound("Subject", id)

    def _named(self, snapshot: Snapshot, name: str) -> tuple[AnnotatedKind, Model | Checkpoint]:
        whole, _, version = name.rpartition(":") if ":" in name.rpartition("/")[2] else (name, "", "")
        model = named_model(snapshot, self._principal, whole)
        if not version:
            return AnnotatedKind.MODEL, model
        parts = ModelName.parse(f"{model.entity}/{model.project}/{model.name}:{version}")
        checkpoint = None if parts is None else checkpoint_named(snapshot, model, parts)
        if checkpoint is None:
            raise NotFound("Checkpoint", name)
        return AnnotatedKind.CHECKPOINT, checkpoint


class JobNotes:
    """The tags and notes that jobs are shown with, and found by."""

    def __init__(self, annotations: Annotations) -> None:
        self._annotations = annotations

    def tagged(self, tag: str) -> frozenset[str]:
        """Return the ids of the jobs and of the runs that have a tag."""
        kinds = (AnnotatedKind.JOB, AnnotatedKind.RUN)
        return frozenset(one.subject for kind in kinds for one in self._annotations.list(kind=kind, tag=tag))

    def of(self, subject: str) -> Mapping[str, Any]:
        """Return the tags and the note of a job."""
        words = self._annotations.get(subject)
        return {"tags": list(words.tags), "note": words.note}
