"""Objects and ops as programs publish them: any JSON value under a name, in versions; and the values that references
lead to.

They are versions of the kind `ObjectKind.OBJECT`, next to the objects of `platform.evaluations.objects`, which the same
references find.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.evaluation.objects import LATEST, ObjectKind, ObjectRef, ObjectVersion, RefKind
from modelyard.domain.identity import Principal
from modelyard.errors import Conflict, InvalidInput, NotFound, ObjectDeleted
from modelyard.formats.json import as_json
from modelyard.parts.traces.calls import Calls
from modelyard.parts.traces.tables import TracedTables
from modelyard.platform.evaluations.objects import publish_version
from modelyard.platform.evaluations.references import find_version
from modelyard.platform.listing import Cursor, Listing
from modelyard.platform.owned import store_texts
from modelyard.platform.paging import cursor_at, get_or_none, index_listing, iter_index, named_place, unique_ids
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

_NAME = re.compile(r"(?!\.+$)[\w.-]{1,128}")
_CLASSES = {ObjectKind.DATASET: "Dataset", ObjectKind.EVALUATION: "Evaluation", ObjectKind.MODEL: "Model"}


class PublishedObjects:
    """The objects of the projects of a principal.

    prompt = platform.compat.traces.objects.publish("prompt", {"text": "Answer in one word."})
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    def publish(
        self,
        object_id: str,
        value: Any,
        *,
        expected: str | None = None,
        project: str | None = None,
        entity: str | None = None,
    ) -> ObjectVersion:
        """Store the next version of an object, JSON data; an equal value is not stored again, and its version is
        returned.

        Raises `InvalidInput`, `Conflict` if the digest is not `expected`, `Forbidden`.
        """
        place, began = named_place(self._runtime, self._principal, entity, project), self._runtime.clock.monotonic()
        if not _NAME.fullmatch(object_id):
            raise InvalidInput.at("object_id", msg="must be 1 to 128 word characters, '.' and '-'")
        value = as_json(value, at=("value",))
        named, now = digest(value), self._runtime.clock.now()
        if expected not in (None, named):
            raise Conflict(f"the digest of the object is {named}, and not the expected one")
        content = {"value": value}
        new = ObjectVersion(self._runtime.ids(), *place, ObjectKind.OBJECT, object_id, 0, named, now, content)
        return store_texts(self._runtime, place[0], partial(publish_version, new=new), began)

    def get(
        self, object_id: str, version: str = LATEST, *, project: str | None = None, entity: str | None = None
    ) -> ObjectVersion:
        """Return a version by digest, alias, `v<n>` or "latest", of any kind.

        Raises `ObjectDeleted`, `NotFound`, `Forbidden`.
        """
        place = named_place(self._runtime, self._principal, entity, project)
        kinds = (ObjectKind.OBJECT, *(kind for kind in ObjectKind if kind is not ObjectKind.OBJECT))
        found = self._runtime.store.read(lambda snapshot: _alive(snapshot, place, kinds, object_id, version))
        if found is None:
            raise NotFound("object", f"{object_id}:{version}")
        if found.deleted_at is not None:
            raise ObjectDeleted("object", f"{object_id}:{version}", found.deleted_at)
        return found

    def is_latest(self, version: ObjectVersion) -> bool:
        """Return whether it is the newest version of its object that was not deleted."""
        place = (version.entity, version.project)
        newest = self._runtime.store.read(
            lambda snapshot: find_version(snapshot, place, version.kind, version.object_id, LATEST)
        )
        return newest is not None and newest.id == version.id

    def list(
        self, object_ids: Sequence[str] = (), *, project: str | None = None, entity: str | None = None
    ) -> Listing[ObjectVersion]:
        """List the versions of a project's objects in the order in which they were published. Raises `Forbidden`."""
        place = named_place(self._runtime, self._principal, entity, project)

        def cursor(id: str, snapshot: Snapshot) -> Cursor:
            found = get_or_none(snapshot, ObjectVersion, id)
            if found is None or (found.entity, found.project) != place:
                raise NotFound("object", id)
            return cursor_at(ObjectVersion, "by_kind", found)

        def keep(version: ObjectVersion) -> bool:
            return version.deleted_at is None and (not object_ids or version.object_id in object_ids)

        kind = ObjectKind.OBJECT
        return index_listing(self._runtime, ObjectVersion, "by_kind", *place, kind, place=cursor, keep=keep)

    def delete(
        self,
        object_id: str,
        versions: Iterable[str] = (),
        *,
        project: str | None = None,
        entity: str | None = None,
    ) -> int:
        """Delete versions of an object that was published here, or all; returns how many. Raises `Forbidden`."""
        place = named_place(self._runtime, self._principal, entity, project)
        wanted, now = unique_ids(versions), self._runtime.clock.now()

        def step(tx: Tx) -> int:
            where = (*place, ObjectKind.OBJECT, object_id)
            named = [find_version(tx, place, ObjectKind.OBJECT, object_id, word) for word in wanted]
            found = named if wanted else [*iter_index(tx, ObjectVersion, "by_object", *where)]
            alive = {one.id: one for one in found if one is not None and one.deleted_at is None}
            for version in alive.values():
                tx.replace(version.deleted(now))
            return len(alive)

        return self._runtime.store.transact(step)

    # ---- references

    def read(self, ref: str) -> Any:
        """Return the value that a reference leads to, in an object, an op, a call or a table.

        Raises `InvalidInput` if the string is not a reference, `NotFound`, `Forbidden`.
        """
        parsed = ObjectRef.parse(ref)
        if parsed is None:
            raise InvalidInput.at("ref", msg="must be a reference such as weave:///<entity>/<project>/object/<name>")
        return self._below(parsed, self._value(parsed), parsed.path)

    def _value(self, ref: ObjectRef) -> Any:
        place = {"entity": ref.entity, "project": ref.project}
        if ref.kind is RefKind.CALL:
            return call_value(Calls(self._runtime, self._principal).get(ref.name, **place))
        if ref.kind is RefKind.TABLE:
            return str(attrs.evolve(ref, path=()))
        return value_of(self.get(ref.name, ref.version or LATEST, **place))

    def _below(self, ref: ObjectRef, value: Any, path: Sequence[tuple[str, str]]) -> Any:
        """Follow the steps of a reference, also through the references of tables and objects that it meets."""
        for at, (step, name) in enumerate(path):
            inner = ObjectRef.parse(value) if isinstance(value, str) else None
            if inner is not None and inner.kind is RefKind.TABLE:
                value = self._row(inner, step, name)
            elif inner is not None:
                return self._below(ref, self._value(inner), (*inner.path, *path[at:]))
            else:
                value = _member(value, step, name)
            if value is None:
                raise NotFound("object", str(ref))
        return value

    def _row(self, table: ObjectRef, step: str, name: str) -> Any:
        read = partial(
            TracedTables(self._runtime, self._principal).rows, table.name, entity=table.entity, project=table.project
        )
        if step == "index" and name.isascii() and name.isdigit() and len(name) < 18:
            found = read(int(name))
        else:
            found = read(keep=lambda one: step == "id" and one == name)
        return next((row.value for row in found), None)


def _alive(
    snapshot: Snapshot, place: tuple[str, str], kinds: Sequence[ObjectKind], object_id: str, version: str
) -> ObjectVersion | None:
    """Return the version of one of these kinds, not a deleted version if there is another."""
    found = [find_version(snapshot, place, kind, object_id, version) for kind in kinds]
    here = [one for one in found if one is not None]
    return next((one for one in here if one.deleted_at is None), here[0] if here else None)


def _member(value: Any, step: str, name: str) -> Any:
    if step == "index" and isinstance(value, list | tuple):
        return value[int(name)] if name.isascii() and name.isdigit() and int(name[:18]) < len(value) else None
    return value.get(name) if isinstance(value, Mapping) and step in ("attr", "key") else None


def value_of(version: ObjectVersion) -> Any:
    """Return the value of an object as its publisher gave it; for other kinds, an instance of their class."""
    if version.kind is ObjectKind.OBJECT:
        return version.content.get("value")
    name = _CLASSES.get(version.kind, "Object")
    named = {"_type": name, "_class_name": name, "_bases": ["Object", "BaseModel"]}
    rows = {"rows": str(version.rows_ref)} if version.rows_ref is not None else {}
    return {**named, "description": None, **version.content, **rows}


def call_value(call: Any) -> Any:
    return {"inputs": call.inputs, "output": call.output.get("value"), "attributes": call.attributes}


def is_op(version: ObjectVersion) -> bool:
    value = version.content.get("value")
    custom = value.get("weave_type") if isinstance(value, Mapping) else None
    published = isinstance(custom, Mapping) and custom.get("type") == "Op"
    return version.kind is ObjectKind.OP or published


def classes_of(version: ObjectVersion) -> tuple[str | None, str | None]:
    """Return the base class and the own class of an object that a client made from an instance; None for others."""
    value = value_of(version)
    if not isinstance(value, Mapping):
        return None, None
    own, bases = value.get("_class_name"), value.get("_bases")
    if not isinstance(own, str):
        return None, None
    named = [base for base in bases if isinstance(base, str)] if isinstance(bases, list | tuple) else []
    known = [base for base in named if base not in ("Object", "BaseModel")]
    return (known[-1] if known else own), own
