"""Answer the requests of an application's own clients to real hosts: `with intercept(platform,
hosts=["api.openai.com"]):`."""

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib import import_module
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
        self._done: set[str] = set()
        self._unhurried: set[str] = set()
        self._on_import = OnImport(LIBRARIES, self._replace)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        with self._lock:
            if not self._blocks:
                self._replaced.enter_context(http_client_intercepted())
                sys.meta_path.insert(0, self._on_import)
            self._blocks += 1
        try:
            for library in LIBRARIES & sys.modules.keys():
                import_module(library)  # another thread may have begun to import it
                self._replace(library)
            yield
        finally:
            with self._lock:
                self._blocks -= 1
                if not self._blocks:
                    sys.meta_path.remove(self._on_import)
                    self._done.clear()
                    self._unhurried.clear()
                    self._replaced.close()

    def _replace(self, library: str) -> None:
        replaced = self._interception(library)  # it imports, which no thread may do that holds the lock
        with self._lock:
            if self._blocks and library not in self._done:
                self._done.add(library)
                self._replaced.enter_context(replaced)

    def _interception(self, library: str) -> AbstractContextManager[None]:
        if library == "urllib3":
            return urllib3_intercepted(import_module("urllib3"), import_module("urllib3.connection"))
        if library == "aiohttp":
            return aiohttp_intercepted(import_module("aiohttp"))
        transports = import_module(f"modelyard.parts.doubles.clients.{library}")
        transport = getattr(transports, f"{library.capitalize()}Transport")
        return httpx_intercepted(import_module(library), transport, self._replace_pauses)

    def _replace_pauses(self) -> None:
        """Replace the pauses of clients that the application has imported: they are slow to load."""
        for name in WITH_PAUSE:
            client = sys.modules.get(f"{name}._base_client")
            if name in self._unhurried or client is None or not hasattr(client.AsyncAPIClient, PAUSE):
                continue
            with self._lock:
                if self._blocks and name not in self._unhurried:
                    self._unhurried.add(name)
                    self._replaced.enter_context(unhurried(client))


_HOOKS = _Hooks()
