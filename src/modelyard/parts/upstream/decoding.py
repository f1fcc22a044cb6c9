"""The body of an answer as it was before the server compressed it, though nothing compressed is requested."""

import zlib
from typing import Any

from modelyard.errors import BackendError
from modelyard.parts.upstream.errors import Head, RetryableError

MOST_AT_ONCE = 2**18
"""Bytes that are decompressed at a time, so that a small answer does not become a large one in memory."""
_GZIP_MAGIC = b"\x1f\x8b"
_ZLIB_METHOD = 8
_EITHER, _RAW = zlib.MAX_WBITS | 32, -zlib.MAX_WBITS
_PLAIN = frozenset({"", "identity", "none", "utf-8"})
_READ = frozenset({"gzip", "x-gzip", "deflate"})


def encoding_of(name: str, begin: bytes) -> str:
    """Return how a body is compressed, "" if it is not. Its first bytes tell more than the server does.

    Raises `RetryableError` for a compression that is not read.
    """
    names = [one.strip().lower() for one in name.split(",")]
    if begin.startswith(_GZIP_MAGIC):
        return "gzip"
    unknown = [one for one in names if one not in _PLAIN | _READ]
    if unknown:
        raise RetryableError(
            BackendError(
                f"the upstream server's answer is compressed with {unknown[0][:20]!r}, which was not requested and is "
                "not read here; let the server, or the proxy before it, send answers as they are"
            )
        )
    return "deflate" if "deflate" in names and begin[:1] not in (b"{", b"[", b":", b" ", b"\n", b"<") else ""


def decoded(head: Head, raw: bytes, most: int) -> bytes:
    """Return a body as it was before the server compressed it. Raises `RetryableError`, also beyond `most` bytes.

    What a server says of a failure may be lost, so that its status remains.
    """
    try:
        encoding = encoding_of(head.content_encoding, raw[:2]) if raw else ""
        return _decompressed(Decompressor(encoding, raw), most) if encoding else raw
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
    """Takes the bytes of a compressed body, and returns what they are, at most `MOST_AT_ONCE` at a time."""

    def __init__(self, encoding: str, begin: bytes) -> None:
        self._encoding = encoding
        self._waiting, self._more = begin, False
        self._stream = self._begun(begin)

    def _begun(self, begin: bytes) -> Any:
        """Return a decompressor: of deflate there are two forms, one of which has a header."""
        has_header = len(begin) > 1 and begin[0] & 0x0F == _ZLIB_METHOD and int.from_bytes(begin[:2]) % 31 == 0
        return zlib.decompressobj(_EITHER if self._encoding == "gzip" or has_header else _RAW)

    def feed(self, data: bytes) -> None:
        self._waiting += data

    def take(self) -> bytes:
        """Return the next bytes; none if more have to come. Raises `RetryableError`."""
        while self._waiting or self._more:
            try:
                found: bytes = self._stream.decompress(self._waiting, MOST_AT_ONCE)
            except zlib.error as wrong:
                raise RetryableError(BackendError("the upstream server's answer is compressed wrongly")) from wrong
            self._waiting = self._stream.unconsumed_tail or self._stream.unused_data
            if self._stream.eof and self._waiting:  # another member follows
                if not self._waiting.startswith(_GZIP_MAGIC):
                    self._waiting = b""
                self._stream = self._begun(self._waiting)
            self._more = len(found) == MOST_AT_ONCE
            if found:
                return found
        return b""
