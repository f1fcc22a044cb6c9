"""Where a principal acts, and which records it may see."""

from typing import Protocol, TypeVar

import attrs

from modelyard.domain.identity import Principal
from modelyard.errors import NotFound
from modelyard.platform.paging import get_or_none, named_place
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot

Namespace = tuple[str, str]
"""An entity and a project."""


class InNamespace(Protocol):
    """A record that belongs to an entity and a project."""

    @property
    def entity(self) -> str:
        """The entity that owns it."""
        ...

    @property
    def project(self) -> str:
        """The project of the entity."""
        ...


R = TypeVar("R", bound=InNamespace)


@attrs.frozen
class ScopedReader:
    """Reads the records that a principal may see. Others look as if they did not exist."""

    runtime: Runtime
    principal: Principal

    def place(self, project: str | None, entity: str | None) -> Namespace:
        """Return the entity and the project, as `named_place` does. Raises `Forbidden`, `InvalidInput`."""
        return named_place(self.runtime, self.principal, entity, project)

    def maybe_place(self, project: str | None, entity: str | None) -> Namespace | None:
        """Return the place like `place`, or None if no project is named."""
        return None if project is None else self.place(project, entity)

    def see(self, snapshot: Snapshot, cls: type[R], id: str, place: Namespace | None) -> R | None:
        """Return the record if it is in the principal's scope and, if one is given, in that place; otherwise None."""
        found = get_or_none(snapshot, cls, id)
        if found is None or not self.principal.scope.covers(found.entity, found.project):
            return None
        return found if place in (None, (found.entity, found.project)) else None

    def find(self, snapshot: Snapshot, cls: type[R], kind: str, id: str, place: Namespace | None) -> R:
        """Return the record like `see`. Raises `NotFound`, which calls the record a `kind`."""
        found = self.see(snapshot, cls, id, place)
        if found is None:
            raise NotFound(kind, id)
        return found
