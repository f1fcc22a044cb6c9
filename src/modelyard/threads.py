"""Threads for calls that block an event loop, shared fairly: no tenant can take all of a pool. A pool starts threads as
they are needed, up to its size. A tenant may hold no more of them than are free: one tenant gets a half, two a third
each, so a newcomer always finds a thread. Further calls wait in one line per tenant, and the lines are served in
rotation."""

import threading
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import attrs

from modelyard.errors import Overloaded, StoreClosed
from modelyard.lazy import asyncio

T = TypeVar("T")

MOST_WAITING = 4096
"""Calls of one tenant that may wait for a thread; the next one is refused."""


def _nothing() -> None:
    pass


class PooledCall(Generic[T]):
    """A call on its way through a pool; `future` is its outcome on the event loop that awaits it."""

    def __init__(self, tenant: str, function: Callable[[], T]) -> None:
        self.tenant: str = tenant
        self._function = function
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self._loop.create_future()

    def run(self) -> None:
        try:
            value = self._function()
        except StopIteration as stopped:  # which no future may hold
            self.fail(RuntimeError(f"a function raised {stopped!r}"))
        except BaseException as error:  # noqa: BLE001 - the one who awaits it gets it
            self.fail(error)
        else:
            self._settle(self.future.set_result, value)

    def fail(self, error: BaseException) -> None:
        """Set an error as the outcome."""
        self._settle(self.future.set_exception, error)

    def _settle(self, setter: Callable[[Any], None], outcome: Any) -> None:
        def settle() -> None:
            if not self.future.done():
                setter(outcome)

        with suppress(RuntimeError):  # the loop was closed, so nothing awaits the outcome
            self._loop.call_soon_threadsafe(settle)


class FairPool:
    """A pool of threads with lines of waiting calls. `name` is the beginning of its threads' names."""

    def __init__(self, name: str, size: int, most_waiting: int = MOST_WAITING) -> None:
        self._name, self._size, self._most_waiting = name, size, most_waiting
        self._lock = threading.Lock()
        self._begun = SimpleQueue[PooledCall[Any] | None]()
        self._threads = 0
        self._free, self._held = size, Counter[str]()
        self._lines: dict[str, deque[PooledCall[Any]]] = {}
        self._closed = False

    def of(self, tenant: str) -> "TenantThreads":
        """Return the threads of the pool as a tenant may use them."""
        return TenantThreads(self, tenant)

    def begin(self, call: PooledCall[Any]) -> None:
        """Start a call, or put it into its line. Raises `Overloaded` if too many of its tenant wait."""
        with self._lock:
            if self._closed:
                raise StoreClosed("this platform was closed; open it again with open_platform")
            line = self._lines.get(call.tenant)
            if line is None and self._admits(call.tenant):
                self._start(call)
            elif line is None:
                self._lines[call.tenant] = deque([call])
            elif len(line) >= self._most_waiting:
                raise Overloaded(f"{len(line)} calls are waiting already; send fewer at once, or try again later")
            else:
                line.append(call)

    def withdraw(self, call: PooledCall[Any]) -> None:
        """Take a call that has not started out of its line, and cancel its future; change nothing for another."""
        with self._lock:
            line = self._lines.get(call.tenant)
            if line is None or call not in line:
                return
            line.remove(call)
            if not line:
                del self._lines[call.tenant]
        call.future.cancel()

    def close(self) -> None:
        """Fail the waiting calls with `StoreClosed`; the threads end when their calls do. Idempotent."""
        with self._lock:
            self._closed = True
            waiting = [call for line in self._lines.values() for call in line]
            self._lines.clear()
            for _ in range(self._threads):
                self._begun.put(None)
            self._threads = 0
        for call in waiting:
            call.fail(StoreClosed("this platform was closed while the call waited"))

    def _admits(self, tenant: str) -> bool:
        return self._held[tenant] < self._free

    def _start(self, call: PooledCall[Any]) -> None:
        self._held[call.tenant] += 1
        self._free -= 1
        self._begun.put(call)
        if self._size - self._free > self._threads:
            self._threads += 1
            name = f"{self._name}-{self._threads}"
            threading.Thread(target=self._serve, name=name, daemon=True).start()

    def _serve(self) -> None:
        """Run calls until the pool is closed; as a daemon, since no stalled call may keep the process alive."""
        while (call := self._begun.get()) is not None:
            call.run()
            with self._lock:
                self._end(call)
            del call

    def _end(self, call: PooledCall[Any]) -> None:
        self._free += 1
        self._held[call.tenant] -= 1
        if not self._held[call.tenant]:
            del self._held[call.tenant]
        while not self._closed and (following := self._following()) is not None:
            self._start(following)

    def _following(self) -> PooledCall[Any] | None:
        """Take the first call of the next line that may have a thread; that line then goes to the end."""
        for tenant, line in self._lines.items():
            if self._admits(tenant):
                call = line.popleft()
                del self._lines[tenant]
                if line:
                    self._lines[tenant] = line
                return call
        return None


@attrs.frozen
class TenantThreads:
    """The threads of a pool, as one tenant may use them."""

    pool: FairPool
    tenant: str

    @property
    def to_close(self) -> "TenantThreads":
        """The threads for ending what was begun: it never waits in line with what is yet to begin."""
        return TenantThreads(self.pool, f"{self.tenant} (closing)")

    def begin(self, function: Callable[[], T]) -> PooledCall[T]:
        """Start a function, or put it into its line. Raises `Overloaded`, `StoreClosed`."""
        call = PooledCall(self.tenant, function)
        self.pool.begin(call)
        return call

    async def outlast(
        self, call: PooledCall[Any], stop: Callable[[], None] = _nothing
    ) -> "asyncio.CancelledError | None":
        """Wait for the end of a call. If the task is cancelled meanwhile, a waiting call leaves its line, and `stop` is
        called for a running one. Returns the last cancellation."""

        def leave() -> None:
            self.pool.withdraw(call)
            stop()

        return await outlast(call.future, leave)

    async def run(self, function: Callable[[], T], stop: Callable[[], None] = _nothing) -> T:
        """Run a function in a thread. A task that is cancelled meanwhile calls `stop` and waits for its end."""
        call = self.begin(function)
        cancelled = await self.outlast(call, stop)
        if cancelled is None:
            return call.future.result()
        if not call.future.cancelled():
            call.future.exception()  # retrieved, so that the loop does not complain of it
        raise cancelled


async def run_in(threads: TenantThreads | None, function: Callable[[], T], stop: Callable[[], None] = _nothing) -> T:
    """Run a function in a thread, as `TenantThreads.run` does; without `threads`, on the event loop."""
    return function() if threads is None else await threads.run(function, stop)


async def outlast(work: "asyncio.Future[Any]", stop: Callable[[], None] = _nothing) -> "asyncio.CancelledError | None":
    """Wait until the work is done, and call `stop` at each cancellation meanwhile. Returns the last of these."""
    cancelled = None
    while not work.done():
        waiting = work.get_loop().create_future()
        work.add_done_callback(partial(_end, waiting))
        try:
            await waiting
        except asyncio.CancelledError as error:
            cancelled = error
            stop()
    return cancelled


def _end(waiting: "asyncio.Future[None]", work: "asyncio.Future[Any]") -> None:
    if not waiting.done():
        waiting.set_result(None)


async def run_blocking(threads: TenantThreads | None, function: Callable[[], T]) -> T:
    return await (in_new_thread(function) if threads is None else threads.run(function))


async def in_new_thread(function: Callable[[], T]) -> T:
    pool = FairPool("modelyard-once", 1)
    try:
        return await pool.of("").run(function)
    finally:
        pool.close()


# ---- the pools of a platform ---------------------------------------------------------------------------------------

AUTHENTICATION = "(authentication)"
"""The tenant for which callers are identified; no entity has this name."""


def _store_pool() -> FairPool:
    return FairPool("modelyard-store", 32)


def _body_pool() -> FairPool:
    return FairPool("modelyard-body", 32)


def _backend_pool() -> FairPool:
    return FairPool("modelyard-backend", 256)


@attrs.frozen(eq=False)
class Threads:
    """The pools of a platform: for calls of its store, for bodies that go in and out, and for backends that block. A
    pool starts its threads when they are first needed. The calls of one pool never wait for those of another."""

    store: FairPool = attrs.field(factory=_store_pool)
    bodies: FairPool = attrs.field(factory=_body_pool)
    backends: FairPool = attrs.field(factory=_backend_pool)

    def close(self) -> None:
        for pool in (self.store, self.bodies, self.backends):
            pool.close()
