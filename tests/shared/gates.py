"""A TCP proxy on loopback whose far side goes away when a test asks: it refuses, or it takes bytes and holds them."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


class Gate:
    """Passes connections to a port on. `port` is its own, and stays the same."""

    def __init__(self, target: int) -> None:
        self._target, self._lock = target, threading.Lock()
        self._passing, self._connections = threading.Event(), set[socket.socket]()
        self._passing.set()
        self._threads: list[threading.Thread] = []
        self._refused: socket.socket | None = None
        self.port: int = 0
        self._listen()

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Refuse connections, and end those that there are."""
        self._end()
        try:
            yield
        finally:
            self._listen()

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Accept connections and bytes, and pass none on."""
        self._passing.clear()
        try:
            yield
        finally:
            self._passing.set()

    def close(self) -> None:
        """End all connections, and wait until each of their sockets is closed."""
        self._passing.set()
        self._end()
        for thread in self._threads:
            thread.join(30)

    def _listen(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", self.port), backlog=512)
        self.port = self._listening.getsockname()[1]
        self._accepting = self._begin(self._accept, self._listening)

    def _begin(self, work: Callable[..., None], *sockets: socket.socket) -> threading.Thread:
        thread = threading.Thread(target=work, args=sockets, daemon=True)
        self._threads = [one for one in self._threads if one.is_alive()]
        thread.start()
        self._threads.append(thread)
        return thread

    def _end(self) -> None:
        with self._lock:
            ended = [self._listening, *self._connections]
            self._refused = self._listening
            for one in ended:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
        self._accepting.join(30)

    def _accept(self, listening: socket.socket) -> None:
        with listening, suppress(OSError):
            while True:
                self._begin(self._connect, listening, listening.accept()[0])

    def _connect(self, listening: socket.socket, near: socket.socket) -> None:
        with near, socket.socket() as far:
            with suppress(OSError):
                far.connect(("127.0.0.1", self._target))
            with self._lock:
                if listening is self._refused:
                    return
                self._connections |= {near, far}
            answers = threading.Thread(target=self._pass_on, args=(far, near), daemon=True)
            answers.start()
            self._pass_on(near, far)
            answers.join()
            with self._lock:
                self._connections -= {near, far}

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(2**16):
                self._passing.wait()
                sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
