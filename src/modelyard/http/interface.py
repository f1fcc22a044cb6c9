"""What an interface is: routes for one kind of client, with one way to identify callers and one format of errors."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from importlib import import_module
from typing import Any

import attrs

from modelyard.domain.record import EMPTY


class Auth(StrEnum):
    """How callers identify themselves. Each route accepts exactly one scheme.

    With ADDRESS the path is the credential: its one parameter is a secret, named after what it gives access to. With
    API_KEY the header `x-api-key` or `api-key` is, or without one that of BEARER. EITHER is BEARER or BASIC, as the
    header says.
    """

    PUBLIC = "public"
    BEARER = "bearer"
    API_KEY = "api_key"
    EITHER = "either"
    BASIC = "basic"
    ADDRESS = "address"


@attrs.frozen(eq=False)
class ErrorFormat:
    """How errors are written.

    `body` makes the object of an exception and its status, `described` is its class for the OpenAPI document, and
    `statuses` replace those of exceptions; if 422 is replaced, no route documents it. `coded` writes the object in
    protobuf for a client that sent protobuf.
    """

    name: str
    body: Callable[[Exception, int], object]
    described: Any
    statuses: Mapping[type[BaseException], int] = EMPTY
    coded: Callable[[Any], bytes] | None = None


Guards = Mapping[tuple[str, ...], tuple[Auth, ErrorFormat]]
Explain = Callable[[Sequence[str | None]], str | None]


def _silent(segments: Sequence[str | None]) -> str | None:
    return None


class _Named(type):
    """Finds the interfaces of the core and of the standard parts by their names: `Interface.BASE`."""

    def __getattr__(cls, name: str) -> "Interface":
        if name.isupper() and not name.startswith("_"):
            for interface in cls:
                if interface.name == name.lower():
                    found: Interface = interface
                    return found
        raise AttributeError(f"there is no interface {name}")

    def __iter__(cls) -> "Iterator[Interface]":
        values = import_module("modelyard.http.interfaces")  # above this module, since it makes interfaces
        found: Iterator[Interface] = values.every_interface()
        return found


@attrs.frozen(eq=False)
class Interface(metaclass=_Named):
    """Routes for one kind of client. Each interface can be mounted alone.

    `errors` is the format of its errors. `guards` say who may ask for a path that does not exist below a prefix, and
    the format of the answer; the longest prefix counts. `missing` returns a sentence for a path that clients request
    and that does not exist. An interface that is not `standard` is mounted only when it is named.
    `description` is a sentence that introduces its operations in the OpenAPI document.
    """

    name: str
    errors: ErrorFormat
    guards: Guards = EMPTY
    missing: Explain = _silent
    standard: bool = True
    description: str = ""

    def __str__(self) -> str:
        return self.name
