"""The names under which variants are served, and how they are found."""

import re

import attrs

from modelyard.domain.identity import Principal, check_name
from modelyard.domain.promotion import check_alias
from modelyard.errors import InvalidInput, NotFound, nearest
from modelyard.parts.variants.records import REF_PREFIX, Variant, VariantAlias, VariantVersion
from modelyard.platform.checkpoints.lookup import elsewhere
from modelyard.platform.paging import get_or_none
from modelyard.protocols import Snapshot

LATEST = "latest"
MAX_NAME = 128 - len(REF_PREFIX)
_PAGE = 1000
_PART = r"[A-Za-z0-9._-]{1,128}"
_NAME = re.compile(
    rf"(?:variants/)?(?:(?P<entity>{_PART})/)?(?P<project>{_PART})/(?P<name>{_PART})(?:@(?P<version>[a-z0-9_-]{{1,64}}))?"
)
_REF = re.compile(rf"(?P<entity>{_PART})/(?P<project>{_PART})/variants\.(?P<name>{_PART}):v(?P<version>[0-9]{{1,18}})")


@attrs.frozen
class VariantName:
    """`[variants/][<entity>/]<project>/<name>[@<number>|@<alias>|@latest]` in parts. Without a number and an alias it
    means the newest version."""

    entity: str
    project: str
    name: str
    number: int | None = None
    alias: str | None = None

    @classmethod
    def parse(cls, text: str, entity: str) -> "VariantName | None":
        """Read a name, which may be one of this entity without saying so, or the one in a reference."""
        found = _REF.fullmatch(text) or _NAME.fullmatch(text)
        if found is None:
            return None
        version = found["version"] or LATEST
        number = int(version) if version.isascii() and version.isdigit() and len(version) <= 18 else None
        alias = None if number is not None or version == LATEST else version
        return cls(found["entity"] or entity, found["project"], found["name"], number, alias)

    def __str__(self) -> str:
        version = self.alias or ("" if self.number is None else str(self.number))
        return f"{self.project}/{self.name}" + (f"@{version}" if version else "")


def named(text: str, entity: str, at: str = "name") -> VariantName:
    """Return the parts of a name. Raises `InvalidInput`, at the argument `at`."""
    found = VariantName.parse(text, entity) if isinstance(text, str) else None
    if found is None:
        raise InvalidInput.at(at, msg='must be such as "project/name", with @3 or @prod for a version')
    return found


def new_name(text: str, entity: str) -> VariantName:
    """Return the name of a variant that is published. Raises `InvalidInput`."""
    name = named(text, entity)
    if name.number is not None or name.alias is not None:
        raise InvalidInput.at("name", msg="must have no version: the next number is given to it")
    for part in (name.entity, name.project, name.name):
        check_name(part, "name")
    if len(name.name) > MAX_NAME:
        raise InvalidInput.at("name", msg=f"must have at most {MAX_NAME} characters after the project")
    return name


def found_variant(snapshot: Snapshot, principal: Principal, name: VariantName) -> Variant:
    """Return a variant. Raises `NotFound`, and `Forbidden` for another entity or project, whether or not it exists."""
    principal.require(name.entity, name.project)
    found = snapshot.find(Variant, "name", name.entity, name.project, name.name)
    if found is None:
        own = snapshot.page(Variant, "by_entity", name.entity, limit=_PAGE)
        known = [f"{one.project}/{one.name}" for one in own if principal.scope.covers(one.entity, one.project)]
        asked = f"{name.project}/{name.name}"
        same = elsewhere(snapshot, principal, Variant, asked)
        hint = (nearest(asked, same, 0.0) or nearest(asked, known)).removeprefix("; ")
        raise NotFound("Variant", asked, hint)
    return found


def found_version(snapshot: Snapshot, variant: Variant, name: VariantName) -> VariantVersion:
    """Return the version that a name means. Raises `NotFound`."""
    number = variant.last_number if name.number is None else name.number
    if name.alias is not None:
        alias = get_or_none(snapshot, VariantAlias, variant.id, check_alias(name.alias))
        if alias is None:
            raise NotFound("Alias", str(name))
        number = alias.number
    found = snapshot.find(VariantVersion, "number", variant.id, number)
    if found is None:
        hint = f"the newest is {variant.last_number}"
        raise NotFound("Version", f"{variant.project}/{variant.name}@{number}", hint)
    return found
