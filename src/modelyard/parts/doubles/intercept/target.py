"""Where intercepted requests go: to a platform, by the paths and with a key that it knows."""

import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

from modelyard.errors import InvalidInput
from modelyard.http.endpoint import Endpoint
from modelyard.part import standard_parts
from modelyard.parts.doubles.clients.in_process import InProcess
from modelyard.parts.doubles.clients.retries import RetryPauses
from modelyard.platform.platform import Platform
from modelyard.protocols import Clock

if TYPE_CHECKING:
    from modelyard.parts.doubles.faults.faults import Faults

INFERENCE = ("", "inference", "v1")
ROOTS = {"api.anthropic.com": "/v1/", "api.openai.com": "/v1/"}
"""Hosts that answer what is below this path, and no other."""

MESSAGES = "/messages"


class HostTarget:
    def __init__(self, platform: Platform, faults: "Faults | None") -> None:
        self.in_process: InProcess = InProcess(platform, ConnectionResetError)
        self.pauses: RetryPauses = RetryPauses(platform)
        self.clock: Clock = platform.clock
        self._platform, self._faults = platform, faults
        self._transports: dict[type, Any] = {}
        self._routes = Endpoint(platform).table
        self._key = platform.keys.create(name="intercepted").secret
        self._root = ""

    def of_host(self, host: str) -> Self:
        """Return the target for one host, with the paths that it has."""
        target = copy(self)
        target._root = ROOTS.get(host, "")
        return target

    def transport(self, kind: type) -> Any:
        found = self._transports.get(kind)
        if found is None:
            made = kind(self._platform)
            found = self._transports[kind] = made if self._faults is None else self._faults.transport(made)
        return found

    def path(self, path: str) -> str:
        """Return the platform's path of a vendor's: "/openai/v1/chat/completions" is "/inference/v1/chat/completions".
        A path that the platform has itself stays, and so does one that it has nothing for, or that the vendor lacks."""
        if self._known(path):
            return path
        segments, root = path.split("/"), self._root
        if root:
            below = "/".join((*INFERENCE, *segments[2:]))
            return below if path.startswith(root) and self._known(below) else path
        paths = ("/".join((*INFERENCE, *segments[at:])) for at in range(1, len(segments)))
        return next(filter(self._known, paths), path)

    def _known(self, path: str) -> bool:
        if path.endswith(MESSAGES) and self._platform.parts is standard_parts():  # no other part has its routes
            self._routes.begin_with(import_module("modelyard.parts.messages.routes").ROUTES)
        return path in self._routes.exact or bool(self._routes.match(path).routes)  # the second loads every route

    def headers(self, headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return the headers with a key of the platform in the place of another service's."""
        return [(name, self._own(value) if name.lower() in _KEYS else value) for name, value in headers]

    def _own(self, value: str) -> str:
        given = _GIVEN.fullmatch(value)
        return value if given is None else f"{given[1] or ''}{self._key}"


_KEYS = frozenset({"authorization", "api-key", "x-api-key"})
_GIVEN = re.compile(r"(Bearer )?(?!my_)\S+", re.IGNORECASE)


class Targets:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_host: dict[str, HostTarget] = {}

    def find(self, host: str) -> HostTarget | None:
        return self._by_host.get(host.lower().rstrip("."))

    @contextmanager
    def added(self, hosts: Iterable[str] | str, target: HostTarget) -> Iterator[None]:
        """Let `target` answer for `hosts` while the block runs. Raises `InvalidInput` for a host that has a target."""
        names = {_host(host) for host in ([hosts] if isinstance(hosts, str) else hosts)}
        with self._lock:
            taken = names & self._by_host.keys()
            if taken:
                raise InvalidInput.at("hosts", msg=f"{', '.join(sorted(taken))} is intercepted already")
            self._by_host |= {name: target.of_host(name) for name in names}
        try:
            yield
        finally:
            with self._lock:
                for name in names:
                    del self._by_host[name]


def _host(name: str) -> str:
    if not isinstance(name, str) or not _HOST.fullmatch(name):
        raise InvalidInput.at("hosts", msg=f'{name!r} must be the name of a host alone, such as "api.openai.com"')
    return name.lower().rstrip(".")


_HOST = re.compile(r"[\w-]+(\.[\w-]+)*\.?")


TARGETS = Targets()
"""The libraries of this process are shared by all platforms, and so is the list of hosts."""
