"""Answer the requests of an application's own clients to real hosts: `with intercept(platform,
hosts=["api.openai.com"]):`."""

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING

from modelyard.parts.doubles.clients.retries import PAUSE, WITH_PAUSE
from modelyard.parts.doubles.intercept.connections import (
    aiohttp_intercepted,
    http_client_intercepted,
    urllib3_intercepted,
)
from modelyard.parts.doubles.intercept.on_import import OnImport
from modelyard.parts.doubles.intercept.target import TARGETS, HostTarget
from modelyard.parts.doubles.intercept.transports import httpx_intercepted, unhurried
from modelyard.platform.platform import Platform

if TYPE_CHECKING:
    from modelyard.parts.doubles.faults.faults import Faults

HOSTS = ("api.openai.com",)
LIBRARIES = frozenset({"httpx", "httpx2", "urllib3", "aiohttp"})


@contextmanager
def intercept(
    platform: Platform, hosts: Iterable[str] | str = HOSTS, *, faults: "Faults | None" = None
) -> Iterator[None]:
    """Answer requests to `hosts` from `platform` while the block runs, wherever in this process their client was made.

    Clients of httpx, httpx2, aiohttp, http.client, urllib.request, urllib3 and requests are covered, and so is what
    builds on them, such as `openai`, also if they are to ask a proxy. Requests to other hosts are sent as ever. A key
    of another service is taken for one of the platform; a request without a key is refused, as there. Paths are found
    by their end: "/openai/v1/chat/completions" is that of chat completions. Retries of `openai`, `anthropic` and
    urllib3, and what is built on them, take no real time: a `ManualClock` of the platform passes instead. It
    also decides when a client's time-out has come. `faults` disturb connections of httpx and httpx2.

    A string is one host. Raises `InvalidInput` for a name that is not that of a host, and for a host that is
    intercepted already.

        with intercept(platform, hosts=["api.openai.com"]):
            my_application.main()
    """
    with TARGETS.added(hosts, HostTarget(platform, faults)), _HOOKS.in_place():
        yield


class _Hooks:
    """The replaced parts of the libraries while at least one block runs. Blocks may overlap, also in threads.

    A library that the program has not imported is replaced when it does.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks, self._replaced = 0, ExitStack()
        self._done: list[ModuleType] = []
        self._on_import = OnImport(LIBRARIES, self._replace)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        with self._lock:
            if not self._blocks:
                self._replaced.enter_context(http_client_intercepted())
            if self._on_import not in sys.meta_path:
                sys.meta_path.insert(0, self._on_import)
            self._blocks += 1
        try:
            for library in LIBRARIES:
                if sys.modules.get(library) is not None:
                    self._replace(library)
            yield
        finally:
            with self._lock:
                self._blocks -= 1
                if not self._blocks:
                    self._done.clear()
                    self._replaced.close()
                    with suppress(ValueError):  # the program may have other finders by now
                        sys.meta_path.remove(self._on_import)

    def _replace(self, name: str) -> None:
        library = import_module(name)  # another thread may have begun to import it
        replaced = self._interception(name, library)  # it imports, which no thread may do that holds the lock
        self._enter(library, replaced)

    def _enter(self, library: ModuleType, replaced: AbstractContextManager[None]) -> None:
        with self._lock:
            if self._blocks and library not in self._done:
                self._done.append(library)
                self._replaced.enter_context(replaced)

    def _interception(self, name: str, library: ModuleType) -> AbstractContextManager[None]:
        if name == "urllib3":
            return urllib3_intercepted(library, import_module("urllib3.connection"))
        if name == "aiohttp":
            return aiohttp_intercepted(library)
        transport = getattr(_transports(name, library), f"{name.capitalize()}Transport")
        return httpx_intercepted(library, transport, self._replace_pauses)

    def _replace_pauses(self) -> None:
        """Replace the pauses of clients that the application has imported: they are slow to load."""
        for name in WITH_PAUSE:
            client = sys.modules.get(f"{name}._base_client")
            if client is not None and client not in self._done and hasattr(client.AsyncAPIClient, PAUSE):
                self._enter(client, unhurried(client))


def _transports(name: str, library: ModuleType) -> ModuleType:
    """Return the module with the transport for this library, a copy if the library was imported again since."""
    transports = import_module(f"modelyard.parts.doubles.clients.{name}")
    if getattr(transports, name) is library:
        return transports
    spec = find_spec(transports.__name__)
    assert spec is not None
    assert spec.loader is not None
    copy = module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy


_HOOKS = _Hooks()
