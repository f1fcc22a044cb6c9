"""Members that parts add to a resource of the platform: `Part.resources` names them with a dot, "training.sweep"."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from modelyard.domain.identity import Principal
from modelyard.errors import nearest
from modelyard.part import Part
from modelyard.platform.runtime import Runtime

if TYPE_CHECKING:
    from modelyard.parts.resources import CompatResources
else:
    CompatResources = object


def member_of_part(parts: Sequence[Part], name: str) -> Callable[[Runtime, Principal], Any] | None:
    """Return what makes the member of a full name, such as "metrics" or "training.sweep"."""
    return next((part.resources[name]() for part in parts if name in part.resources), None)


def members_of_parts(parts: Sequence[Part], area: str = "") -> list[str]:
    """Return the names of the members that parts add to a platform, or to an area of it, such as "training."."""
    names = (name.removeprefix(area) for part in parts for name in part.resources if name.startswith(area))
    return [name for name in names if "." not in name]


def nearest_member(owner: object, name: str) -> str:
    """Return a hint at the public member that was meant."""
    return "" if name.startswith("_") else nearest(name, [one for one in dir(owner) if not one.startswith("_")])


class Extended:
    """A resource to which parts add members."""

    AREA: ClassVar[str]

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    if not TYPE_CHECKING:  # `modelyard.parts.resources` declares them for type checkers

        def __getattr__(self, name: str) -> Any:
            made = None if name.startswith("_") else member_of_part(self._runtime.parts, self.AREA + name)
            if made is None:
                meant = nearest_member(self, name)
                raise AttributeError(f"there is no {self.AREA}{name}, and no part brings one{meant}")
            return made(self._runtime, self._principal)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *members_of_parts(self._runtime.parts, self.AREA)})


def moved_member(parts: Sequence[Part], platform: object, name: str) -> tuple[str, Any]:
    """Return where a member is that had this name on the platform, and it; None if there is none."""
    usual = "remove_orphans" if name == "sweep" else Compat.AREA + name
    place = next((part.moved[name] for part in parts if name in part.moved), usual)
    owner, _, member = place.rpartition(".")
    return place, getattr(getattr(platform, owner) if owner else platform, member, None)


class Compat(Extended, CompatResources):
    """What other services have, in their words: responses, files, batches, fine-tuning jobs and the like."""

    AREA: ClassVar[str] = "compat."
