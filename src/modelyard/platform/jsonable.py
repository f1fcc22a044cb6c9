"""Values as JSON that a record can hold."""

from collections.abc import Mapping
from enum import Enum
from typing import Any

import attrs

MAX_TEXT = 2000


def to_jsonable(value: Any) -> Any:
    """Mappings, lists and scalars under the fields' own names; what is None or empty is left out.

    >>> from modelyard.domain.completion import Message, Role
    >>> plain(Message(Role.USER, "hi"))
    {'role': 'user', 'content': 'hi'}
    """
    if attrs.has(type(value)):
        named = ((field.name, getattr(value, field.name)) for field in attrs.fields(type(value)))
        return {name: to_jsonable(part) for name, part in named if part is not None and part != () and part != {}}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(name): to_jsonable(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [to_jsonable(part) for part in value]
    return value


def truncate_for_storage(text: str) -> str:
    """A text as every store can keep it, bounded."""
    return text[:MAX_TEXT].replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
