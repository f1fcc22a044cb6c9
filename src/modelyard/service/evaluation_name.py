"""Which evaluation is meant by whoever names one: by its name, by a reference, or by the published version itself."""

import attrs

from modelyard.domain.identity import Principal
from modelyard.domain.reference import EVALUATION_KINDS, ObjectRef, RefKind, object_id
from modelyard.domain.versioned import ObjectKind, ObjectVersion, OneObject
from modelyard.errors import InvalidInput
from modelyard.protocols import Snapshot
from modelyard.service.listing import every
from modelyard.service.place import Place
from modelyard.service.resolution import find_version

_SAYS = (
    "must be a name such as quiz or quiz:v0, a reference such as weave:///<entity>/<project>/object/<name>[:<version>] "
    "or a version of an evaluation as `publish` and `get` return it"
)


def evaluation_ref(evaluation: OneObject, place: Place) -> ObjectRef:
    """The reference of an evaluation, a name being one of this place. Raises `InvalidInput`, saying what to pass."""
    if isinstance(evaluation, ObjectVersion):
        if evaluation.kind is not ObjectKind.EVALUATION:
            raise InvalidInput.at("evaluation", msg=f"is a version of a {evaluation.kind}; it {_SAYS}")
        return evaluation.ref
    ref = _parsed(evaluation, place) if isinstance(evaluation, str) else evaluation
    if not isinstance(ref, ObjectRef) or ref.kind not in EVALUATION_KINDS:
        raise InvalidInput.at("evaluation", msg=_SAYS)
    return ref


def _parsed(text: str, place: Place) -> ObjectRef | None:
    if "://" in text:
        return ObjectRef.parse(text)
    name, colon, version = text.partition(":")
    return ObjectRef.parse(str(ObjectRef(*place, RefKind.OBJECT, object_id(name))) + colon + version)


def held(snapshot: Snapshot, principal: Principal, ref: ObjectRef) -> ObjectRef:
    """A reference to a version, by its digest however it names it; as it is where that version is not here to see."""
    if ref.version is None or not principal.scope.covers(ref.entity, ref.project):
        return ref
    found = find_version(snapshot, (ref.entity, ref.project), ObjectKind.EVALUATION, ref.name, ref.version)
    return ref if found is None else attrs.evolve(ref, version=found.digest)


def versions_of(snapshot: Snapshot, principal: Principal, ref: ObjectRef) -> list[str]:
    """The versions of an evaluation that are here to see, as `v<n>`."""
    if not principal.scope.covers(ref.entity, ref.project):
        return []
    where = (ref.entity, ref.project, ObjectKind.EVALUATION, ref.name)
    found = every(snapshot, ObjectVersion, "by_object", *where)
    return [f"v{version.index}" for version in found if version.deleted_at is None]
