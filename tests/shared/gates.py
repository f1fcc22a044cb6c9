"""A TCP proxy on loopback whose far side goes away when a test asks: it refuses, or it takes bytes and holds them."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Gate:
    """Passes connections to a port on. `port` is its own, and stays the same."""

    def __init__(self, target: int) -> None:
        self._target, self._lock = target, threading.Lock()
        self._passing, self._connections = threading.Event(), set[socket.socket]()
        self._passing.set()
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
        self._passing.set()
        self._end()

    def _listen(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", self.port), backlog=512)
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listening,), daemon=True).start()

    def _end(self) -> None:
        with self._lock:
            ended = [self._listening, *self._connections]
            self._connections.clear()
        for one in ended:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self, listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                near, far = listening.accept()[0], socket.socket()
                with self._lock:
                    self._connections |= {near, far}
                with suppress(OSError):
                    far.connect(("127.0.0.1", self._target))
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(2**16):
                self._passing.wait()
                sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._connections -= {source, sink}
