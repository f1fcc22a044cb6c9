"""The answer to one request of HTTP/1.1, taken as it comes: its head, and the bytes of its body."""

from collections import deque

from modelyard.errors import MissingExtra
from modelyard.parts.upstream.errors import Head

try:
    import httptools
except ImportError as error:
    raise MissingExtra("httptools", "upstream") from error

MOST_OF_A_HEAD = 2**17
"""The most bytes that a head may take."""
_FRAMED = (b"content-length", b"transfer-encoding")
_LENIENCIES = dict.fromkeys(
    (
        "lenient_headers",
        "lenient_version",
        "lenient_chunked_length",
        "lenient_transfer_encoding",
        "lenient_optional_lf_after_cr",
        "lenient_optional_cr_before_lf",
        "lenient_optional_crlf_after_chunk",
        "lenient_spaces_after_chunk_size",
    ),
    True,
)
"""Of a request they would let another one in; an answer is paid for, and its connection carries nothing else."""


class ConnectionBroken(Exception):
    """A connection ended within an answer, or carried something else."""


class NotHttp(ConnectionBroken):
    """A connection carried what is not HTTP."""


class UpstreamResponse:
    """Takes the bytes of a connection after a request, and returns the bytes of the body.

    Interim answers (1xx) are skipped. What servers and proxies get wrong around an answer is read: lines that end
    without CR, a length beside chunks (the chunks count), odd values of headers. `reusable` is whether the connection
    can carry another request: the answer is `complete`, nothing follows it, and the server keeps the connection.
    """

    def __init__(self) -> None:
        self.head: Head | None = None
        self.complete: bool = False
        self.reusable: bool = False
        self.buffered: int = 0
        self._taken = 0
        self._headers: dict[bytes, bytes] = {}
        self._body: deque[bytes] = deque()
        self._parser = httptools.HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(**_LENIENCIES)

    def feed(self, data: bytes) -> None:
        """Take bytes; none is the end of the connection. Raises `ConnectionBroken`."""
        if not data:
            self._end()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as wrong:
            self.reusable = False
            if self.complete:  # what follows the answer is not HTTP
                return
            raise NotHttp(f"the answer is not HTTP: {wrong}") from wrong
        self._taken += len(data)
        if self.head is None and self._taken > MOST_OF_A_HEAD:
            raise ConnectionBroken(f"the head of the answer is longer than {MOST_OF_A_HEAD} bytes")

    def take(self) -> bytes:
        if not self.buffered:
            return b""
        self.buffered = 0
        found = b"".join(self._body)
        self._body.clear()
        return found

    def _end(self) -> None:
        """Take the end of the connection, which ends an answer that names no length."""
        if self.head is None or any(name in self._headers for name in _FRAMED):
            raise ConnectionBroken("the connection ended within the answer")
        self.complete = True

    # ---- what the parser calls

    def on_message_begin(self) -> None:
        """Note an answer that follows the requested one."""
        self.reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; what follows the body is ignored."""
        if self.head is None:
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self.head is not None:
            return
        status = self._parser.get_status_code()
        if status < 200:
            self._headers.clear()
            return
        named = map(self._headers.get, (b"content-type", b"content-encoding", b"retry-after", b"location"))
        self.head = Head(status, *["" if value is None else value.decode("latin-1") for value in named])

    def on_body(self, piece: bytes) -> None:
        if not self.complete:
            self._body.append(piece)
            self.buffered += len(piece)

    def on_message_complete(self) -> None:
        if self.head is not None and not self.complete:
            self.complete = True
            self.reusable = self._parser.should_keep_alive() and not all(name in self._headers for name in _FRAMED)
