"""One post: the name is resolved once, and what was resolved is connected to. No redirect is followed."""

import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from http.client import HTTPConnection, HTTPException, HTTPSConnection

import attrs

from modelyard.parts.webhooks.target import Resolve, TargetRefused, WebhookTarget, allowed
from modelyard.protocols import Clock

LONGEST = 15.0
"""Seconds that a post may take, by the platform's clock."""

PATIENCE = 60.0
"""Seconds after which a socket gives up by itself."""

MAX_RESPONSE = 2**16
"""Bytes of a response that are read; it is closed then."""


@attrs.frozen
class PostOutcome:
    """How a post ended: the status of the answer, 0 for none, and what was wrong."""

    status: int = 0
    problem: str = ""

    @property
    def delivered(self) -> bool:
        return 200 <= self.status < 300


class Post:
    """A post on its way, in a thread of its own: `begin` it, and then `finish` waits for its end."""

    def __init__(self, target: WebhookTarget, headers: Mapping[str, str], body: bytes, trusted: bool, resolve: Resolve):
        self._target, self._headers, self._body, self._trusted = target, headers, body, trusted
        self._resolve = resolve
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._late = False
        self._outcome = PostOutcome(problem="it did not answer in time")

    def begin(self) -> None:
        threading.Thread(target=self._run, name="modelyard-webhook", daemon=True).start()

    def finish(self, clock: Clock, until: float) -> PostOutcome:
        """Wait for the end until a moment of the monotonic clock, and then cut the connection."""
        if not clock.wait(self._ended, max(0.0, until - clock.monotonic())):
            self._cut()
            return PostOutcome(problem=f"it did not answer within {LONGEST:.0f} seconds")
        return self._outcome

    def _run(self) -> None:
        try:
            self._outcome = PostOutcome(self._exchange())
        except TargetRefused as refused:
            self._outcome = PostOutcome(problem=str(refused))
        except (OSError, HTTPException, ValueError) as error:
            self._outcome = PostOutcome(problem=f"it could not be reached: {type(error).__name__}")
        finally:
            self._cut()
            self._ended.set()

    def _exchange(self) -> int:
        target = self._target
        connected = self._connect()
        connection: HTTPConnection
        if target.secure:
            connection = HTTPSConnection(target.host, target.port, timeout=PATIENCE)
            connected = self._hold(_tls().wrap_socket(connected, server_hostname=target.host))
        else:
            connection = HTTPConnection(target.host, target.port, timeout=PATIENCE)
        connection.sock = connected
        connection.request("POST", target.path, self._body, dict(self._headers))
        response = connection.getresponse()
        response.read(MAX_RESPONSE)
        return response.status

    def _connect(self) -> socket.socket:
        """Connect to the first address that answers. Raises `TargetRefused`, `OSError`."""
        addresses = allowed(self._resolve(self._target.host, self._target.port), self._trusted)
        failure: OSError = OSError("no address")
        for family, address in addresses:
            made = self._hold(socket.socket(family, socket.SOCK_STREAM))
            made.settimeout(PATIENCE)
            try:
                made.connect(address)
            except OSError as error:
                failure = error
                made.close()
                continue
            return made
        raise failure

    def _hold(self, made: socket.socket) -> socket.socket:
        """Remember the socket, to cut it. Raises `OSError` if it is too late."""
        with self._lock:
            if self._late:
                made.close()
                raise TimeoutError
            self._socket = made
        return made

    def _cut(self) -> None:
        with self._lock:
            self._late, held = True, self._socket
        if held is not None:
            with suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)
            held.close()


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
