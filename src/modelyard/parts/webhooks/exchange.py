"""One post: the name is resolved once, and what was resolved is connected to. No redirect is followed."""

import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, cast

import attrs

from modelyard.parts.webhooks.target import Resolve, TargetRefused, WebhookTarget, allowed

LONGEST = 15.0
"""Seconds that a post may take, by the platform's clock."""

PATIENCE = 60.0
"""Seconds after which a socket gives up by itself."""

MAX_RESPONSE = 2**16
"""Bytes of a response that are read; it is closed then."""


MOST_INTERIM = 10
"""Times that a receiver may say `100 Continue` before it answers: `HTTPResponse` alone would read on without end."""


@attrs.frozen
class PostOutcome:
    """How a post ended: the status of the answer, 0 for none, and what was wrong."""

    status: int = 0
    problem: str = ""

    @property
    def delivered(self) -> bool:
        return 200 <= self.status < 300


class Post:
    """A post on its way, in a thread of its own: `begin` it, wait until `answered` is set and it has `ended`, and `cut`
    it, which returns how it ended.
    """

    def __init__(
        self,
        target: WebhookTarget,
        headers: Mapping[str, str],
        body: bytes,
        trusted: bool,
        resolve: Resolve,
        answered: threading.Event,
    ) -> None:
        self._target, self._headers, self._body, self._trusted = target, headers, body, trusted
        self._resolve, self._answered = resolve, answered
        self.ended = False
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._late = False
        self._outcome = PostOutcome(problem=f"it did not answer within {LONGEST:.0f} seconds")

    def begin(self) -> None:
        threading.Thread(target=self._run, name="modelyard-webhook", daemon=True).start()

    def cut(self) -> PostOutcome:
        """Close the connection, whatever is still to come. Returns how the post has ended by then."""
        with self._lock:
            self._late, held = True, self._socket
            outcome = self._outcome
        if held is not None:
            with suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)
            held.close()
        return outcome

    def _run(self) -> None:
        try:
            self._exchange()
        except TargetRefused as refused:
            self._note(PostOutcome(problem=str(refused)))
        except (OSError, HTTPException, ValueError) as error:
            self._note(PostOutcome(problem=f"it could not be reached: {type(error).__name__}"))
        finally:
            self.cut()
            self.ended = True
            self._answered.set()

    def _note(self, outcome: PostOutcome) -> None:
        """Note how the post ends, unless it has been answered or cut before."""
        with self._lock:
            if not self._late and not self._outcome.status:
                self._outcome = outcome

    def _exchange(self) -> None:
        target = self._target
        connected = self._connect()
        connection: HTTPConnection
        if target.secure:
            connection = HTTPSConnection(target.host, target.port, timeout=PATIENCE)
            connected = self._secured(connected)
        else:
            connection = HTTPConnection(target.host, target.port, timeout=PATIENCE)
        connection.sock = connected
        connection.response_class = _Answer
        connection.request("POST", target.path, self._body, dict(self._headers))
        response = connection.getresponse()
        self._note(PostOutcome(response.status))
        response.read(MAX_RESPONSE)  # so that the receiver can end its answer

    def _secured(self, connected: socket.socket) -> socket.socket:
        """Shake hands with a socket that can be cut meanwhile."""
        secured = _tls().wrap_socket(connected, server_hostname=self._target.host, do_handshake_on_connect=False)
        self._hold(secured)
        secured.do_handshake()
        return secured

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
            if not self._trusted and made.getsockname()[0] == made.getpeername()[0]:
                raise TargetRefused("its host is this machine")
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


class _Answer(HTTPResponse):
    _left = MOST_INTERIM + 1

    def _read_status(self) -> tuple[str, int, str]:
        if not self._left:
            raise HTTPException("it only continues")
        self._left -= 1
        return cast(Any, super())._read_status()  # type: ignore[no-any-return]


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
