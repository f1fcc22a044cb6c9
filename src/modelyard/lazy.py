"""Modules and objects that load when they are first used, so that a platform in memory answers soon after its import.
An import stays at the top of a file and keeps its types: `from modelyard.stores import sqlite` names a module that is
loaded by the first `sqlite.SqliteStore`, because its package declared so with `defer_modules`. `asyncio`,
`hashlib` and the library's `log` are imported from here: most processes never need them, and they are slow to load."""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from os.path import exists
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    import asyncio
    import hashlib
    import logging

__all__ = ["asyncio", "calls", "defer_modules", "deferred", "hashlib", "log"]

T = TypeVar("T")


def lazy_exports(
    package: str, homes: Mapping[str, Sequence[str]], unlisted: Mapping[str, Sequence[str]] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the `__getattr__` and `__dir__` of a package whose public names load the module they live in at first use.

    `homes` maps modules, as seen from modelyard, to names; a module's own last name stands for the module itself.
    The public names of parts, if they are there, are added to them, and `__all__` is made of all. Those that are
    `unlisted` are imported from here, too, but have another public module, where `dir` shows them.
    """
    listed, also = _by_name(homes), _by_name(unlisted or {})
    home_of = listed | also

    def is_module(name: str) -> bool:
        place = f"{sys.modules[package].__path__[0]}/{name}"
        return exists(f"{place}.py") or exists(f"{place}/__init__.py")

    def everything() -> dict[str, str]:
        return listed | _by_name(_homes_of_parts(package, "HOMES"))

    def load(name: str) -> Any:
        if name == "__all__":
            return sorted(everything())
        found = home_of.get(name)
        if found is None and not name.startswith("_") and not is_module(name):
            found = everything().get(name) or _by_name(_homes_of_parts(package, "UNLISTED")).get(name)
        if found is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = import_module(f"modelyard.{found}")
        value = home if home.__name__.endswith(f".{name}") else getattr(home, name)
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: sorted([*everything(), *(name for name in vars(sys.modules[package]) if name[:2] == "__")])


def _by_name(homes: Mapping[str, Sequence[str]]) -> dict[str, str]:
    return {name: home for home, names in homes.items() for name in names}


def _homes_of_parts(package: str, which: str) -> Mapping[str, Sequence[str]]:
    door = package.removeprefix("modelyard").removeprefix(".").replace(".", "_") or "top"
    name = f"modelyard.parts.doors.{door}"
    try:
        homes: Mapping[str, Sequence[str]] = getattr(import_module(name), which, {})
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{name}.".startswith(f"{missing.name}."):
            raise
        return {}
    return homes


class _Deferred:
    __slots__ = ("__dict__", "_known", "_made", "_make")

    def __init__(self, make: Callable[[], object], known: Mapping[str, object]) -> None:
        object.__setattr__(self, "_make", make)
        object.__setattr__(self, "_known", known)
        object.__setattr__(self, "_made", None)

    def __getattr__(self, name: str) -> Any:
        if name in self._known:
            return self._known[name]
        return getattr(self._made or _made_by(self), name)

    def __getitem__(self, key: object) -> Any:
        return _made_by(self)[key]

    def __contains__(self, key: object) -> bool:
        return key in _made_by(self)

    def __iter__(self) -> Iterator[Any]:
        return iter(_made_by(self))

    def __setattr__(self, name: str, value: object) -> None:
        setattr(_made_by(self), name, value)


def _made_by(stand_in: _Deferred) -> Any:
    made = stand_in._made
    if made is None:
        made = stand_in._make()
        object.__setattr__(stand_in, "_made", made)
        if type(made) is ModuleType:  # so that its members are found without `__getattr__`
            object.__setattr__(stand_in, "__dict__", made.__dict__)
    return made


def defer_modules(package: str, *names: str) -> None:
    """Let `from package import name` load that module only when something of it is used.
    `from package.name import something` loads it at once, as ever."""
    for name in names:
        setattr(sys.modules[package], name, _Deferred(partial(import_module, f"{package}.{name}"), {}))


def deferred(make: Callable[[], T], **known: object) -> T:
    """Return a stand-in for what `make` returns. `make` is called once, when an attribute is used that is not `known`.

    >>> later = deferred(lambda: "made now", upper=lambda: "known before")
    >>> later.upper(), later.title()
    ('known before', 'Made Now')
    """
    lock = threading.Lock()
    made: list[T] = []

    def once() -> T:
        with lock:
            if not made:
                made.append(make())
        return made[0]

    return cast(T, _Deferred(once, known))


def calls(module: Any, name: str) -> Callable[..., Any]:
    def call(*arguments: Any, **more: Any) -> Any:
        return getattr(module, name)(*arguments, **more)

    return call


def _logger() -> "logging.Logger":
    module = import_module("logging")
    logger: logging.Logger = module.getLogger("modelyard")
    logger.addHandler(module.NullHandler())
    logger.addFilter(_in_one_line)
    return logger


def _in_one_line(record: "logging.LogRecord") -> bool:
    """Say an error of our own in the line itself, without its traceback but at level DEBUG."""
    fault = record.exc_info[1] if record.exc_info else None
    if isinstance(fault, import_module("modelyard.errors").ModelyardError) and not log.isEnabledFor(10):
        record.msg, record.args, record.exc_info = f"{record.getMessage()}: {fault}", (), None
    return True


if not TYPE_CHECKING:
    asyncio = _Deferred(partial(import_module, "asyncio"), {})
    hashlib = _Deferred(partial(import_module, "hashlib"), {})

log: "logging.Logger" = deferred(_logger)
