"""Connections that cost little without a request: heads are bounded in bytes and in time, answers that nobody reads in
time, and while too many connections are open, those without a request are closed, the oldest first."""

import gc
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from modelyard.parts.server.bounds import Bounds
from modelyard.parts.server.joined_writes import JoiningProtocol

if hasattr(JoiningProtocol, "on_body"):  # httptools calls it with each piece of a body
    BODY_STATES: tuple[object, ...] = ()
else:
    import h11

    BODY_STATES = (h11.SEND_BODY, h11.DONE)

DESCRIPTORS = 2**16
"""How many file descriptors a server asks for, if it may have so many."""

MOST_PIPELINED = 64
"""Requests that wait on one connection for the answer before them."""

COLLECTED = 2**25
"""Bytes received after which cycles are looked for: an error that is kept by its own traceback keeps the body, too."""


class _Received:
    """What all connections have received since cycles were looked for last."""

    size = 0

    def add(self, size: int) -> None:
        self.size += size
        if self.size >= COLLECTED:
            self.size = 0
            gc.collect()


_received = _Received()


def raise_descriptors() -> int:
    """Raise the process's own limit of file descriptors. Returns how many connections it leaves room for."""
    try:
        import resource  # noqa: PLC0415 - Windows has none
    except ImportError:
        return Bounds().connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # a system may allow less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Bounds().connections if soft == resource.RLIM_INFINITY else min(Bounds().connections, soft * 3 // 4)


class BoundedProtocol(JoiningProtocol):
    """Ends connections without a whole head in time. `_left` is how many bytes the head may still have; `_late` is the
    timer that ends it, and `_unread` the one for an answer that the client does not read. `_moved` is whether the last
    data were of a body. `pipeline` are the requests that wait for the answer to one before them."""

    bounds: Bounds = Bounds()
    pipeline: Any = ()
    _left = 0
    _late: Any = None
    _unread: Any = None
    _moved = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._left = self.bounds.head_bytes
        self._late = self.loop.call_later(self.bounds.head_seconds, self._end_late)
        if len(self.connections) > self.bounds.connections:
            self._close_oldest()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        if self._unread is not None:
            self._unread.cancel()
        super().connection_lost(exc)

    # ---- heads

    def data_received(self, data: bytes) -> None:
        while len(data) > self._left:
            if not self._left:
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
                return
            piece, data = data[: self._left], data[self._left :]
            self._receive(piece)
            if self.transport.is_closing():
                return
        self._receive(data)

    def _receive(self, data: bytes) -> None:
        before = self.cycle
        _received.add(len(data))
        self._moved = BODY_STATES != () and self.conn.their_state in BODY_STATES
        super().data_received(data)
        cycle = self.cycle
        if cycle is not before or self._moved:
            self._left = self.bounds.head_bytes
            if len(self.pipeline) > MOST_PIPELINED:
                self.transport.abort()
        else:
            self._left -= len(data)
        if cycle is not None and not cycle.response_complete:
            if self._late is not None:
                self._stop_waiting()
        elif self._late is None and not self.transport.is_closing():
            self._late = self.loop.call_later(self.bounds.head_seconds, self._end_late)

    def on_body(self, body: bytes) -> None:
        self._moved = True
        super().on_body(body)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _end_late(self) -> None:
        """Refuse the head that is not whole; a connection that has sent nothing of one is only closed."""
        if self._left < self.bounds.head_bytes:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT)
        else:
            self.transport.abort()

    def _refuse(self, status: HTTPStatus) -> None:
        self._stop_waiting()
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            reason = status.phrase.encode()
            self.transport.write(
                b"HTTP/1.1 %d %s\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\n"
                b"connection: close\r\n\r\n%s" % (status, reason, len(reason), reason)
            )
            self._close()
        else:
            self.transport.abort()  # the answer to the request before it is under way

    # ---- connections without a request

    @property
    def waits_since(self) -> float | None:
        """When it began to wait for a request, on the clock of the loop; None while it has one."""
        if self.cycle is not None and not self.cycle.response_complete:
            return None
        if self._late is not None:
            return float(self._late.when() - self.bounds.head_seconds)
        idle = self.timeout_keep_alive_task
        return None if idle is None else float(idle.when() - self.timeout_keep_alive)

    def _close_oldest(self) -> None:
        """Close as many as are too many, each time that a share has come, which may stay."""
        share, state = self.bounds.connections // 16 + 1, self.server_state
        state.share = getattr(state, "share", share) - 1  # uvicorn's state of this server
        if state.share:
            return
        state.share = share
        bounded = [one for one in self.connections if isinstance(one, BoundedProtocol)]
        waiting = sorted((since, id(one), one) for one in bounded if (since := one.waits_since) is not None)
        many = min(len(self.connections) - self.bounds.connections + share, len(waiting) - share)
        for _, _, one in waiting[: max(0, many)]:
            one._close()  # what was answered is still sent

    # ---- answers that nobody reads

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        self._close()

    def _close(self) -> None:
        self.transport.close()
        if unread := self.transport.get_write_buffer_size():
            self._watch_reader(unread)

    def _watch_reader(self, unread: int) -> None:
        if self._unread is None:
            self._unread = self.loop.call_later(self.bounds.unread_seconds, self._look_at_reader, unread)

    def _look_at_reader(self, before: int) -> None:
        self._unread, now = None, self.transport.get_write_buffer_size()
        if now >= before:
            self.transport.abort()
        else:
            self._watch_reader(now)
