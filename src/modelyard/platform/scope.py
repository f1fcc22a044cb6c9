"""Where a principal acts, and which records it may see."""

from typing import Protocol, TypeVar

import attrs

from modelyard.domain.identity import Principal, check_name
from modelyard.errors import NotFound
from modelyard.platform.paging import get_or_none
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

    principal: Principal

    def place(self, project: str, entity: str | None) -> Namespace:
        """Return the entity, by default the principal's, and project. Raises `Forbidden`, `InvalidInput`."""
        entity = self.principal.entity if entity is None else entity
        self.principal.require(entity, project)
        return check_name(entity, "entity"), check_name(project, "project")

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
