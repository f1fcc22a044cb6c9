"""The file of a version, which people read, change and review: TOML, always written in the same way."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from modelyard.errors import InvalidInput, Problem
from modelyard.parts.variants.content import MAX_SIZE, VariantContent, checked_content

MAX_FILE = 8 * MAX_SIZE
"""How many bytes a file may have: an escape has up to six for one."""

MEMBERS = ("name", "model", "system", "template", "parameters", "examples")
_TEXTS = ("name", "model", "system", "template")

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SPECIAL = re.compile(r'["\\\x00-\x08\x0b-\x1f\x7f]')
_BETWEEN = re.compile(r"[=,{}\[\]]")
_STRING = re.compile(
    r'''"""(?:[^\\]|\\.?+)*?(?:"{3,5}|\Z)|'{3}.*?(?:'{3,5}|\Z)|"(?:[^"\\\n]|\\.?+)*+"?|'[^'\n]*+'?|#[^\n]*''',
    re.DOTALL,
)
"""A string or a comment. One that does not end is read once, and not again from each of its quotes."""

MOST_PARTS = 64
_SHORT = {"\\": "\\\\", "\b": "\\b", "\f": "\\f", "\r": "\\r"}


# ---- writing


def written(name: str, content: VariantContent) -> str:
    """Return the file of a version, which ends with a new line."""
    given = [("name", name), *((member, getattr(content, member)) for member in ("model", "system", "template"))]
    lines = [f"{member} = {_text(value)}" for member, value in given if value]
    if content.parameters:
        lines += _table(("parameters",), content.parameters)
    for one in content.data["examples"]:
        lines += ["", "[[examples]]", *_members(("examples",), one)]
    return "\n".join(lines) + "\n"


def _table(path: tuple[str, ...], values: Mapping[str, Any], ends: str = "[]") -> Iterator[str]:
    half = len(ends) // 2
    yield ""
    yield f"{ends[:half]}{'.'.join(map(_key, path))}{ends[half:]}"
    yield from _members(path, values)


def _members(path: tuple[str, ...], values: Mapping[str, Any]) -> Iterator[str]:
    """Write what has one line first: what follows a table belongs to it."""
    tables = {name: value for name, value in values.items() if isinstance(value, Mapping)}
    lists = {name: value for name, value in values.items() if _is_tables(value)}
    for name, value in values.items():
        if name not in tables and name not in lists:
            yield f"{_key(name)} = {_value(value)}"
    for name, value in tables.items():
        yield from _table((*path, name), value)
    for name, value in lists.items():
        for one in value:
            yield from _table((*path, name), one, "[[]]")


def _is_tables(value: object) -> bool:
    return isinstance(value, Sequence) and bool(value) and all(isinstance(one, Mapping) for one in value)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _line(name)


def _value(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(name)} = {_inline(one)}" for name, one in value.items()) + "}"
    return "[" + ", ".join(map(_inline, value)) + "]"


def _inline(value: Any) -> str:
    return _line(value) if isinstance(value, str) else _value(value)


def _text(text: str) -> str:
    if "\n" not in text:
        return _line(text)

    def escaped(found: re.Match[str]) -> str:
        at = found.start()
        if found[0] == '"':  # three would end the text, and so would one before its end
            return '\\"' if at == len(text) - 1 or text[max(0, at - 2) : at] == '""' else '"'
        return _escape(found[0])

    return '"""\n' + _SPECIAL.sub(escaped, text) + '"""'


def _line(text: str) -> str:
    escaped = _SPECIAL.sub(lambda found: '\\"' if found[0] == '"' else _escape(found[0]), text)
    return '"' + escaped.replace("\n", "\\n").replace("\t", "\\t") + '"'


def _escape(character: str) -> str:
    return _SHORT.get(character, f"\\u{ord(character):04x}")


# ---- reading


@attrs.frozen
class VariantFile:
    """What a file says: the name of a variant, "project/name", and the content of a version."""

    name: str
    content: VariantContent


def read(text: str) -> VariantFile:
    """Read a file that was written here, or by hand. Raises `InvalidInput` at the place of what is wrong."""
    if not isinstance(text, str) or len(text) > MAX_FILE:
        raise InvalidInput.at("file", msg=f"must be a text of at most {MAX_FILE} characters")
    _refuse_deep(text)
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise InvalidInput.at("file", msg=f"is not TOML: {error}") from None
    try:
        return _read(data)
    except InvalidInput as error:
        raise InvalidInput([attrs.evolve(one, loc=("file", *one.loc)) for one in error.problems]) from None


def _refuse_deep(text: str) -> None:
    """Refuse a key of many parts: the parser of the library takes a time that grows with the square of their number."""
    bare = _STRING.sub(lambda found: "" if found[0][0] == "#" else '""', text)
    if any(piece.count(".") > MOST_PARTS for line in bare.split("\n") for piece in _BETWEEN.split(line)):
        raise InvalidInput.at("file", msg=f"has a key of more than {MOST_PARTS} parts")


def _read(data: Mapping[str, Any]) -> VariantFile:
    known = ", ".join(MEMBERS)
    problems = [Problem((name,), f"is not one of {known}") for name in data if name not in MEMBERS]
    problems += [Problem((name,), "must be a text") for name in _TEXTS if not isinstance(data.get(name, ""), str)]
    problems += [Problem((name,), "is missing", "missing") for name in ("name", "model") if not data.get(name)]
    if problems:
        raise InvalidInput(problems)
    texts = (data["model"], data.get("system", ""), data.get("template", ""))
    return VariantFile(data["name"], checked_content(*texts, data.get("examples", ()), data.get("parameters", {})))
