"""References to what an evaluation is about, and the digests that name content (specification 2.3)."""

import re
from collections.abc import Iterable
from enum import StrEnum
from urllib.parse import quote, unquote

import attrs

from modelyard.errors import Problem


class RefKind(StrEnum):
    OBJECT = "object"
    OP = "op"
    CALL = "call"
    TABLE = "table"


_NAME = r"(?!\.+/)[A-Za-z0-9._-]{1,128}"
_OBJECT = r"[\w.-]{1,128}"
_VERSION = r"[\w-]{1,128}"
_EXTRA = r"(?:/(?:attr|key|index|id)/(?:[\w.~-]|%[0-9A-Fa-f]{2}){1,512}){0,32}"
_REF = re.compile(
    rf"(?:weave|modelyard):///(?P<entity>{_NAME})/(?P<project>{_NAME})/"
    rf"(?P<kind>object|op|call|table)/(?P<name>{_OBJECT})(?::(?P<version>{_VERSION}))?(?P<extra>{_EXTRA})"
)


@attrs.frozen
class ObjectRef:
    """`weave:///<entity>/<project>/<kind>/<name>[:<version>]` and any path into the object, taken apart. `str()` of it
    is the reference again, with the scheme `weave`."""

    entity: str
    project: str
    kind: RefKind
    name: str
    version: str | None = None
    path: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> "ObjectRef | None":
        """Return the parts of a reference, or None for a string that is not one."""
        found = _REF.fullmatch(text)
        if found is None or (found["kind"] in ("call", "table") and found["version"]):
            return None
        words = found["extra"].split("/")[1:]
        try:
            path = tuple((words[at], unquote(words[at + 1], errors="strict")) for at in range(0, len(words), 2))
        except UnicodeDecodeError:
            return None
        return cls(found["entity"], found["project"], RefKind(found["kind"]), found["name"], found["version"], path)

    def __str__(self) -> str:
        version = f":{self.version}" if self.version else ""
        path = "".join(f"/{step}/{quote(value, safe='')}" for step, value in self.path)
        return f"weave:///{self.entity}/{self.project}/{self.kind}/{self.name}{version}{path}"


def reference_pattern(kinds: Iterable[RefKind]) -> str:
    words = "|".join(sorted(kinds))
    return f"^(?:weave|modelyard):///{_NAME}/{_NAME}/(?:{words})/{_OBJECT}(?::{_VERSION})?{_EXTRA}$"


def same_scheme(text: str) -> str:
    return "weave" + text.removeprefix("modelyard") if text.startswith("modelyard:///") else text


def object_id(name: str) -> str:
    """Return the id that references use for `name`: lower case, at most 128 characters. Spaces and slashes become `_`;
    other characters than word characters, `.` and `-` are left out."""
    return re.sub(r"[^\w.-]", "", re.sub(r"[\s/]", "_", name.lower()))[:128]


class RefMode(StrEnum):
    """How strictly a reference is checked: not at all; it must parse and be of the right kind; it must exist."""

    LENIENT = "lenient"
    SYNTAX = "syntax"
    RESOLVE = "resolve"


EVALUATION_KINDS = frozenset({RefKind.OBJECT})
MODEL_KINDS = frozenset({RefKind.OBJECT, RefKind.OP})
MAX_REF = 20_000


def reference_problem(field: str, text: str, kinds: frozenset[RefKind], mode: RefMode) -> Problem | None:
    """Return what is wrong with a reference, whether or not its object exists."""
    if len(text) > MAX_REF or "\0" in text:
        return Problem((field,), f"must be at most {MAX_REF} characters, none of them NUL")
    if mode is RefMode.LENIENT:
        return None
    ref = ObjectRef.parse(text)
    if ref is not None and ref.kind in kinds:
        return None
    shapes = " or ".join(f"weave:///<entity>/<project>/{kind}/<name>[:<version>]" for kind in sorted(kinds))
    return Problem((field,), f"must be a reference such as {shapes}", "reference")
