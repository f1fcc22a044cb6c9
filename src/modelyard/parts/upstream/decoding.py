"""The body of an answer as it was before the server compressed it, though nothing compressed is requested."""

import re
import zlib
from typing import Any

from modelyard.errors import BackendError
from modelyard.parts.upstream.errors import Head, RetryableError

MOST_AT_ONCE = 2**18
"""Bytes that are decompressed at a time, so that a small answer does not become a large one in memory."""
TELLING = 2
"""Bytes of a body that tell whether it is compressed."""
_GZIP_MAGIC = b"\x1f\x8b"
_ZLIB_METHOD = 8
_EITHER, _RAW = zlib.MAX_WBITS | 32, -zlib.MAX_WBITS
_PLAIN = frozenset({"", "identity", "none", "utf-8"})
_READ = frozenset({"gzip", "x-gzip", "deflate"})
_TEXT = re.compile(rb"\xef\xbb|\s[\s{\[:<dei]|[{\[][\s\"{}\[\]]|:[\s\w]|<[!?a-zA-Z]|da|ev|id|re|er")
"""How JSON, events and pages begin: nothing that is compressed does, or hardly ever."""
_MOST_LAYERS = 4
"""How many times a body may be compressed."""


class Unreadable(RetryableError):
    """An answer came that cannot be decompressed."""


def encoding_of(name: str, begin: bytes) -> str:
    """Return how a body is compressed, "" if it is not. Its first bytes tell more than the server does.

    Raises `Unreadable` for a compression that is not read.
    """
    names = [one.strip().lower() for one in name.split(",")]
    if begin.startswith(_GZIP_MAGIC):
        return "gzip"
    unknown = [one for one in names if one not in _PLAIN | _READ]
    if unknown and not _TEXT.match(begin):
        raise Unreadable(
            BackendError(
                f"the upstream server's answer is compressed with {unknown[0][:20]!r}, which was not requested and is "
                "not read here; let the server, or the proxy before it, send answers as they are"
            )
        )
    if unknown:
        return ""
    return "deflate" if "deflate" in names and begin[:1] not in (b"{", b"[", b":", b" ", b"\n", b"<") else ""


def decoded(head: Head, raw: bytes, most: int) -> bytes:
    """Return a body as it was before the server compressed it. Raises `RetryableError`, also beyond `most` bytes.

    What a server says of a failure may be lost, so that its status remains.
    """
    try:
        encoding = encoding_of(head.content_encoding, raw[:2]) if raw else ""
        return _decompressed(Decompressor(encoding, raw, head.content_encoding), most) if encoding else raw
    except RetryableError:
        if head.is_success:
            raise
        return b""


def _decompressed(reader: "Decompressor", most: int) -> bytes:
    pieces, size = [], 0
    while piece := reader.take():
        pieces.append(piece)
        size += len(piece)
        if size > most:
            raise RetryableError(BackendError(f"the upstream server's answer is longer than {most} bytes"))
    return b"".join(pieces)


class Decompressor:
    """Takes the bytes of a compressed body, and returns what they are, at most `MOST_AT_ONCE` at a time.

    What comes out may be compressed again, as its own first bytes tell, or the other names of `label`.
    """

    def __init__(self, encoding: str, begin: bytes, label: str = "", layer: int = 1) -> None:
        self._encoding, self._layer = encoding, layer
        self._within = label.rpartition(",")[0]
        self._waiting, self._more, self._begin = begin, False, b""
        self._stream = self._begun(begin)
        self._inner: Decompressor | None = None
        self._known = layer == _MOST_LAYERS

    def _begun(self, begin: bytes) -> Any:
        """Return a decompressor: of deflate there are two forms, one of which has a header."""
        has_header = len(begin) > 1 and begin[0] & 0x0F == _ZLIB_METHOD and int.from_bytes(begin[:2]) % 31 == 0
        return zlib.decompressobj(_EITHER if self._encoding == "gzip" or has_header else _RAW)

    def feed(self, data: bytes) -> None:
        self._waiting += data

    def take(self) -> bytes:
        """Return the next bytes; none if more have to come. Raises `Unreadable`."""
        while True:
            inner = self._inner
            if inner is not None and (within := inner.take()):
                return within
            taken = self._take()
            found = taken if self._known else self._looked_at(taken)
            if found and inner is None:
                return found
            if inner is not None:
                inner.feed(found)
            if not taken and self._inner is inner:
                return b""

    def _looked_at(self, found: bytes) -> bytes:
        """Return the first bytes once there are enough to tell whether they are compressed again."""
        self._begin += found
        if not self._begin or (len(self._begin) < TELLING and not self._stream.eof):
            return b""
        begin, self._begin, self._known = self._begin, b"", True
        encoding = encoding_of(self._within, begin)
        if not encoding:
            return begin
        self._inner = Decompressor(encoding, begin, self._within, self._layer + 1)
        return b""

    def _take(self) -> bytes:
        while self._waiting or self._more:
            try:
                found: bytes = self._stream.decompress(self._waiting, MOST_AT_ONCE)
            except zlib.error as wrong:
                raise Unreadable(BackendError("the upstream server's answer is compressed wrongly")) from wrong
            self._waiting = self._stream.unconsumed_tail or self._stream.unused_data
            if self._stream.eof and self._waiting:  # another member follows
                if not self._waiting.startswith(_GZIP_MAGIC):
                    self._waiting = b""
                self._stream = self._begun(self._waiting)
            self._more = len(found) == MOST_AT_ONCE
            if found:
                return found
        return b""
