"""Named objects with versions: publishing, reading and deleting them, and a dataset's rows (specification 4.5)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import attrs

from modelyard.domain.canonical import TableDigest, digest
from modelyard.domain.evaluation.objects import LATEST, ObjectAlias, ObjectKind, ObjectRef, ObjectVersion, object_id
from modelyard.domain.evaluation.scorer_rules import rule_of
from modelyard.domain.identity import Principal
from modelyard.domain.promotion import check_alias
from modelyard.errors import InvalidInput, NotFound, ObjectDeleted, Problem, located_at
from modelyard.formats.json import as_json
from modelyard.formats.jsonl import read_rows, written_row
from modelyard.platform.artifacts import remove_unless_recorded
from modelyard.platform.evaluations.references import Namespace, References, ScopedReader, find_version
from modelyard.platform.listing import Cursor, Listing
from modelyard.platform.owned import store_texts
from modelyard.platform.paging import cursor_at, get_or_none, index_listing, iter_index, named_place, unique_ids
from modelyard.platform.runtime import Runtime
from modelyard.protocols import ArtifactStore, Snapshot, StoredArtifact, Tx

MAX_NAME = 512
MAX_SCORERS = 1000
MAX_TRIALS = 1000


class Objects:
    """The datasets, scorers, models, evaluations and ops that a principal may see.

    dataset = platform.evaluations.objects.publish("dataset", "questions", {}, rows, project="support")
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal, self._reader = runtime, principal, ScopedReader(runtime, principal)

    def _namespace(self, project: str | None, entity: str | None) -> Namespace:
        return named_place(self._runtime, self._principal, entity, project)

    # ---- publishing

    def publish(
        self,
        kind: ObjectKind | str,
        name: str,
        content: Mapping[str, Any],
        rows: Iterable[Mapping[str, Any]] | None = None,
        *,
        project: str | None = None,
        entity: str | None = None,
    ) -> ObjectVersion:
        """Store the next version of an object. Equal content is the version that has it already, and not a new one.

        `content` is any JSON object; members that are None are left out of it. A dataset has `rows` too, read once. An
        evaluation names its `dataset` and `scorers` by their references. A scorer's `op_source_code` is kept, never
        run, and published as an op as well, to which its `score_op` refers; a `scorer` is a declarative one, as data
        (see `rule_of`), which evaluations run. Raises `InvalidInput`, `Forbidden`.
        """
        kind, namespace = _kind(kind), self._namespace(project, entity)
        if kind is ObjectKind.OBJECT:
            raise InvalidInput.at("kind", msg="is published by platform.compat.traces.objects.publish")
        given = _content(kind, name, content)
        if (rows is None) is (kind is ObjectKind.DATASET):
            raise InvalidInput.at("rows", msg="must be given for a dataset, and for nothing else")
        new = ObjectVersion(
            self._runtime.ids(), *namespace, kind, _id_of(name), 0, digest(given), self._runtime.clock.now(), given
        )
        if kind is ObjectKind.SCORER and "op_source_code" in given:
            return self._keep(*_with_op(new, self._runtime.ids()))
        return self._keep(new) if rows is None else self._keep_with_rows(new, rows)

    def _keep(self, *versions: ObjectVersion) -> ObjectVersion:
        def step(tx: Tx) -> ObjectVersion:
            return [self._publish(tx, version) for version in versions][-1]

        return store_texts(self._runtime, versions[0].entity, step)

    def _keep_with_rows(self, new: ObjectVersion, rows: Iterable[Mapping[str, Any]]) -> ObjectVersion:
        began = self._runtime.clock.monotonic()
        stored, table = _store_rows(self._runtime.artifacts, rows)
        with remove_unless_recorded(self._runtime.artifacts, stored.name):
            table_digest = table.hex()
            named = digest({**new.content, "rows": table_digest})
            new = attrs.evolve(new, digest=named, rows=table.rows, rows_artifact=stored.name, table_digest=table_digest)
            kept = store_texts(self._runtime, new.entity, partial(self._publish, new=new), began)
        if kept.id != new.id:
            self._runtime.artifacts.remove(stored.name)
        return kept

    def _publish(self, tx: Tx, new: ObjectVersion) -> ObjectVersion:
        if new.kind is ObjectKind.EVALUATION:
            self._check_references(tx, new.content)
        return publish_version(tx, new)

    def _check_references(self, snapshot: Snapshot, content: Mapping[str, Any]) -> None:
        problem = partial(References(self._runtime.settings.reference_mode, self._principal).problem, snapshot)
        scorers = enumerate(content.get("scorers", ()))
        found = [
            problem(("dataset",), ObjectKind.DATASET, content["dataset"]),
            *(problem(("scorers", at), ObjectKind.SCORER, scorer) for at, scorer in scorers),
        ]
        problems = [one for one in found if one is not None]
        if problems:
            raise InvalidInput(problems)

    def alias(
        self,
        kind: ObjectKind | str,
        object_id: str,
        version: str,
        alias: str,
        *,
        project: str | None = None,
        entity: str | None = None,
    ) -> ObjectVersion:
        """Give a version a name, such as "golden", which the version that had it before loses. Raises `ObjectDeleted`,
        `NotFound`, `Forbidden`, and `InvalidInput` for a string that is not an alias."""
        kind, namespace = _kind(kind), self._namespace(project, entity)
        check_alias(alias)

        def step(tx: Tx) -> ObjectVersion:
            found = _alive(tx, namespace, kind, object_id, version)
            named = ObjectAlias(*namespace, kind, object_id, alias, found.index)
            given = get_or_none(tx, ObjectAlias, *namespace, kind, object_id, alias)
            (tx.add if given is None else tx.replace)(named)
            return found

        return self._runtime.store.transact(step)

    # ---- reading

    def get(
        self,
        kind: ObjectKind | str,
        object_id: str,
        version: str = LATEST,
        *,
        project: str | None = None,
        entity: str | None = None,
    ) -> ObjectVersion:
        """Return a version by digest, alias, `v<n>` or "latest". Raises `ObjectDeleted`, `NotFound`, `Forbidden`."""
        kind, namespace = _kind(kind), self._namespace(project, entity)
        return self._runtime.store.read(lambda snapshot: _alive(snapshot, namespace, kind, object_id, version))

    def resolve(self, kind: ObjectKind | str, ref: ObjectRef | str) -> ObjectVersion:
        """Return the version of an object of this kind that a reference names; without a version, the latest. Raises
        `InvalidInput` for a string that is not a reference, `ObjectDeleted`, `NotFound`, `Forbidden`."""
        parsed = ObjectRef.parse(ref) if isinstance(ref, str) else ref
        if parsed is None:
            raise InvalidInput.at(
                "ref", msg="must be a reference such as modelyard:///<entity>/<project>/object/<name>"
            )
        return self.get(kind, parsed.name, parsed.version or LATEST, project=parsed.project, entity=parsed.entity)

    def list(
        self, kind: ObjectKind | str, *, project: str | None = None, entity: str | None = None
    ) -> Listing[ObjectVersion]:
        """List all versions of a kind in a project, in the order in which they were published. Raises `InvalidInput`,
        `Forbidden`."""
        namespace = self._namespace(project, entity)
        place = partial(self._place, namespace)
        return index_listing(
            self._runtime,
            ObjectVersion,
            "by_kind",
            *namespace,
            _kind(kind),
            place=place,
            keep=lambda one: one.deleted_at is None,
        )

    def _place(self, namespace: Namespace, id: str, snapshot: Snapshot) -> Cursor:
        return cursor_at(ObjectVersion, "by_kind", self._reader.find(snapshot, ObjectVersion, "Version", id, namespace))

    def rows(self, version: ObjectVersion) -> Iterator[Mapping[str, Any]]:
        """Yield the rows of a dataset, one at a time. Raises `InvalidInput` for another object, `Forbidden`."""
        self._principal.require(version.entity, version.project)
        if version.rows_artifact is None:
            raise InvalidInput.at("version", msg="is not a version of a dataset, or was deleted")
        with self._runtime.artifacts.open(version.rows_artifact) as file:
            yield from read_rows(file)

    # ---- deleting

    def delete(
        self,
        kind: ObjectKind | str,
        object_id: str,
        versions: Iterable[str] = (),
        *,
        project: str | None = None,
        entity: str | None = None,
    ) -> int:
        """Delete versions, or all of them if none is named, with their content; returns how many there were. A deleted
        version keeps its index, so that no other takes it. Raises `InvalidInput`, `Forbidden`."""
        kind, namespace, wanted = _kind(kind), self._namespace(project, entity), unique_ids(versions)
        now = self._runtime.clock.now()

        def step(tx: Tx) -> list[ObjectVersion]:
            found = _named(tx, namespace, kind, object_id, wanted)
            for version in found:
                tx.replace(version.deleted(now))
            return found

        gone = self._runtime.store.transact(step)
        for version in gone:
            if version.rows_artifact is not None:
                self._runtime.artifacts.remove(version.rows_artifact)
        return len(gone)


# ---- steps


def publish_version(tx: Tx, new: ObjectVersion) -> ObjectVersion:
    """Store the next version of an object, unless a version that is not deleted has the same digest; return the
    version."""
    where = (new.entity, new.project, new.kind, new.object_id)
    same = tx.page(ObjectVersion, "by_digest", *where, new.digest, limit=1, descending=True)
    if same and same[0].deleted_at is None:
        return same[0]
    last = tx.page(ObjectVersion, "by_object", *where, limit=1, descending=True)
    version = attrs.evolve(new, index=last[0].index + 1 if last else 0)
    tx.add(version)
    return tx.get(ObjectVersion, version.id)  # as the store returns it: deeply frozen


def _alive(snapshot: Snapshot, namespace: Namespace, kind: ObjectKind, object_id: str, version: str) -> ObjectVersion:
    found = find_version(snapshot, namespace, kind, object_id, version)
    if found is None:
        raise NotFound(kind.value.capitalize(), f"{object_id}:{version}")
    if found.deleted_at is not None:
        raise ObjectDeleted(kind.value.capitalize(), f"{object_id}:{version}", found.deleted_at)
    return found


def _named(
    snapshot: Snapshot, namespace: Namespace, kind: ObjectKind, object_id: str, words: Sequence[str]
) -> list[ObjectVersion]:
    every_one = iter_index(snapshot, ObjectVersion, "by_object", *namespace, kind, object_id)
    found = [find_version(snapshot, namespace, kind, object_id, word) for word in words] if words else every_one
    alive = {version.id: version for version in found if version is not None and version.deleted_at is None}
    return [*alive.values()]


# ---- what is published


def _kind(kind: ObjectKind | str) -> ObjectKind:
    if kind not in list(ObjectKind):
        raise InvalidInput.at("kind", msg=f"must be one of {', '.join(ObjectKind)}")
    return ObjectKind(kind)


def _id_of(name: str) -> str:
    named = object_id(name) if len(name) <= MAX_NAME else ""
    if not named.strip("."):
        raise InvalidInput.at("name", msg=f"must be 1 to {MAX_NAME} characters, with a letter or a digit among them")
    return named


def _content(kind: ObjectKind, name: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
    members = {"name": name, **{key: value for key, value in given.items() if value is not None}}
    content: Mapping[str, Any] = as_json(members, at=("content",))
    if kind is ObjectKind.EVALUATION:
        problems = [*_wrong_members(content)]
        if problems:
            raise InvalidInput(problems)
    if kind is ObjectKind.SCORER and "scorer" in content:
        _check_scorer(content["scorer"])
    return content


def _check_scorer(data: Any) -> None:
    if not isinstance(data, Mapping):
        raise InvalidInput.at("scorer", msg='must be an object, such as {"type": "exact_match"}')
    with located_at("scorer"):
        rule_of(data)


def _wrong_members(content: Mapping[str, Any]) -> Iterator[Problem]:
    if not isinstance(content.get("dataset"), str):
        yield Problem(("dataset",), "must be the reference of a dataset")
    scorers = content.get("scorers", ())
    if not isinstance(scorers, list | tuple) or len(scorers) > MAX_SCORERS:
        yield Problem(("scorers",), f"must be at most {MAX_SCORERS} references")
    elif not all(isinstance(scorer, str) for scorer in scorers):
        yield Problem(("scorers",), "must be references of scorers")
    trials = content.get("trials", 1)
    if type(trials) is not int or not 1 <= trials <= MAX_TRIALS:
        yield Problem(("trials",), f"must be a whole number from 1 to {MAX_TRIALS}")


def _with_op(scorer: ObjectVersion, op_id: str) -> tuple[ObjectVersion, ObjectVersion]:
    """Return the op that holds a scorer's source code, and the scorer, which refers to it."""
    name = f"{scorer.object_id[:120]}.score"
    content = {"name": name, "source_code": scorer.content["op_source_code"]}
    op = attrs.evolve(scorer, id=op_id, kind=ObjectKind.OP, object_id=name, digest=digest(content), content=content)
    return op, attrs.evolve(scorer, content={**scorer.content, "score_op": str(op.ref)})


def _store_rows(artifacts: ArtifactStore, rows: Iterable[Mapping[str, Any]]) -> tuple[StoredArtifact, TableDigest]:
    table = TableDigest()

    def lines() -> Iterator[bytes]:
        for number, row in enumerate(rows):
            line, data = written_row(row, number)
            yield line
            table.add(digest(data))

    return artifacts.put(lines()), table
