"""What a file is that is neither JSON Lines nor a table, by its first bytes."""

import os
import re
from collections.abc import Mapping
from typing import BinaryIO

from modelyard.errors import InvalidInput
from modelyard.formats.json_stream import CHUNK

SAVE_LINES = "save it as JSON Lines (df.to_json(path, orient='records', lines=True))"
_UNPACKED = "unpack it, or " + SAVE_LINES
_IN_UTF_8 = "save it in UTF-8"
_LETTERS: Mapping[bytes, tuple[str, str]] = {
    b"PAR1": ("Parquet", SAVE_LINES),
    b"ARROW1": ("Arrow", SAVE_LINES),
    b"FEA1": ("Feather", SAVE_LINES),
    b"ORC": ("ORC", SAVE_LINES),
}
"""Those that begin with letters, as a text may, too."""
_NO_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_NEAR = 2**10
"""Bytes among which such a file has one that no text has."""
_BLOCKS = (b"1AY&SY", b"\x17rE8P\x90")
"""How the first block of bzip2 begins, after the level; the second is that of an empty file."""
_OTHERS: Mapping[bytes, tuple[str, str]] = {
    b"Obj\x01": ("Avro", SAVE_LINES),
    b"SQLite format 3\x00": ("an SQLite database", SAVE_LINES),
    b"\x80\x04": ("a pickle", SAVE_LINES),
    b"\x80\x05": ("a pickle", SAVE_LINES),
    b"PK\x03\x04": ("a zip file or a workbook", SAVE_LINES),
    b"\x1f\x8b": ("gzip", _UNPACKED),
    b"\x28\xb5\x2f\xfd": ("zstd", _UNPACKED),
    **{b"BZh%d%b" % (level, block): ("bzip2", _UNPACKED) for level in range(1, 10) for block in _BLOCKS},
    b"\xfd7zXZ\x00": ("xz", _UNPACKED),
    b"\x04\x22\x4d\x18": ("lz4", _UNPACKED),
    b"\xff\xfe\x00\x00": ("UTF-32", _IN_UTF_8),
    b"\x00\x00\xfe\xff": ("UTF-32", _IN_UTF_8),
    b"\xff\xfe": ("UTF-16", _IN_UTF_8),
    b"\xfe\xff": ("UTF-16", _IN_UTF_8),
    b"{\x00": ("UTF-16", _IN_UTF_8),
    b"[\x00": ("UTF-16", _IN_UTF_8),
    b"\x00{": ("UTF-16", _IN_UTF_8),
    b"\x00[": ("UTF-16", _IN_UTF_8),
}
"""How files begin that are not read, what they are, and what to do."""


def check_begin(file: BinaryIO) -> bytes:
    """Return the first bytes of a file, and leave them to be read. Raises `InvalidInput` for what is known not to be
    read.
    """
    begin = _begin_of(file)
    known = {**_LETTERS, **_OTHERS} if _NO_TEXT.search(begin[:_NEAR]) else _OTHERS
    for mark, (other, advice) in known.items():
        if begin.startswith(mark):
            raise InvalidInput.at(msg=f"is {other}, which is not read; {advice}")
    return begin


def _begin_of(file: BinaryIO) -> bytes:
    peek = getattr(file, "peek", None)
    if peek is not None:
        return bytes(peek(CHUNK))
    begin = file.read(CHUNK)
    file.seek(-len(begin), os.SEEK_CUR)
    return begin
