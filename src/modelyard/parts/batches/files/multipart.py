"""Forms as clients send them, `multipart/form-data` (RFC 7578), read part by part in constant memory."""

from collections.abc import Iterator
from typing import BinaryIO
from urllib.parse import unquote

import attrs

from modelyard.errors import InvalidInput
from modelyard.formats.json_stream import CHUNK
from modelyard.http.message import header_parameters

MAX_HEAD = 16 * 2**10
MAX_VALUE = 64 * 2**10
MAX_PARTS = 64

_ENCODINGS = ("7bit", "8bit", "binary")


@attrs.define
class FormPart:
    """One field of a form: the bytes of `content` are read before the next part is requested."""

    name: str
    filename: str | None
    content: Iterator[bytes]

    def value(self) -> str:
        found = b""
        for piece in self.content:
            found += piece
            if len(found) > MAX_VALUE:
                raise InvalidInput.at(self.name, msg=f"must not be longer than {MAX_VALUE} bytes")
        try:
            return found.decode()
        except UnicodeDecodeError:
            raise InvalidInput.at(self.name, msg="must be text in UTF-8") from None


def read_form(file: BinaryIO, boundary: str) -> Iterator[FormPart]:
    source = _Source(file, b"\r\n--" + boundary.encode("ascii"))
    for _ in source.until_boundary():
        pass  # a preamble means nothing
    for _ in range(MAX_PARTS):
        if not source.has_part():
            return
        name, filename = _named(source.head())
        part = FormPart(name, filename, source.until_boundary())
        yield part
        for _ in part.content:
            pass
    raise InvalidInput.at(msg=f"has more than {MAX_PARTS} parts")


class _Source:
    def __init__(self, file: BinaryIO, delimiter: bytes) -> None:
        self._file, self._delimiter = file, delimiter
        self._ready = b"\r\n"  # so that the first delimiter is like all others

    def _more(self) -> None:
        chunk = self._file.read(CHUNK)
        if not chunk:
            raise InvalidInput.at(msg="ends before the last boundary of its form: it was cut off, or is not a form")
        self._ready += chunk

    def until_boundary(self) -> Iterator[bytes]:
        keep = len(self._delimiter) - 1
        while (at := self._ready.find(self._delimiter)) < 0:
            piece, self._ready = self._ready[:-keep], self._ready[-keep:]
            if piece:
                yield piece
            self._more()
        piece, self._ready = self._ready[:at], self._ready[at + len(self._delimiter) :]
        if piece:
            yield piece

    def has_part(self) -> bool:
        line = self._line(b"\r\n", "--")
        if line == b"--":
            return False
        if line.strip(b" \t"):
            raise InvalidInput.at(msg="has more on the line of a boundary than the boundary")
        return True

    def head(self) -> bytes:
        self._ready = b"\r\n" + self._ready
        return self._line(b"\r\n\r\n")

    def _line(self, end: bytes, last: str = "") -> bytes:
        while (at := self._ready.find(end)) < 0:
            if last and self._ready.startswith(last.encode()):
                return last.encode()
            if len(self._ready) > MAX_HEAD:
                raise InvalidInput.at(msg=f"has a part whose headers are longer than {MAX_HEAD} bytes")
            self._more()
        line, self._ready = self._ready[:at], self._ready[at + len(end) :]
        if len(line) > MAX_HEAD:
            raise InvalidInput.at(msg=f"has a part whose headers are longer than {MAX_HEAD} bytes")
        return last.encode() if last and line.startswith(last.encode()) else line


def _named(head: bytes) -> tuple[str, str | None]:
    try:
        lines = head.decode().split("\r\n")
    except UnicodeDecodeError:
        raise InvalidInput.at(msg="has a part whose headers are not in UTF-8") from None
    headers = {name.strip().lower(): value.strip() for name, colon, value in (_cut(line) for line in lines) if colon}
    if headers.get("content-transfer-encoding", "binary").lower() not in _ENCODINGS:
        raise InvalidInput.at(msg="has a part with a Content-Transfer-Encoding; send its bytes as they are")
    disposition = headers.get("content-disposition", "")
    given = header_parameters(disposition)
    if disposition.partition(";")[0].strip().lower() != "form-data" or not given.get("name"):
        raise InvalidInput.at(msg='has a part without Content-Disposition: form-data; name="..."')
    extended = given.get("filename*", "")
    if extended.lower().startswith("utf-8''"):
        return given["name"], unquote(extended[len("utf-8''") :])
    filename = given.get("filename")
    return given["name"], None if filename is None else filename.replace("%22", '"')  # as browsers escape it


def _cut(line: str) -> tuple[str, str, str]:
    return line.partition(":")
