"""How files of other formats begin, and what they are called."""

import bz2
import gzip
import lzma

_ROW = '{"messages": []}\n'
BEGINS = [
    (gzip.compress(_ROW.encode(), mtime=0), "gzip"),
    (bz2.compress(_ROW.encode()), "bzip2"),
    (bz2.compress(_ROW.encode(), 1), "bzip2"),
    (bz2.compress(b""), "bzip2"),
    (lzma.compress(_ROW.encode()), "xz"),
    (b"\x28\xb5\x2f\xfd\x04\x58", "zstd"),
    (b"PAR1\x15\x04", "Parquet"),
    (b"ARROW1\x00\x00", "Arrow"),
    (b"FEA1\x00\x00\x00\x00", "Feather"),
    (b"ORC\x0a\x1c\x0a\x04", "ORC"),
    (b"PK\x03\x04\x14\x00", "a zip file or a workbook"),
    (b"\x80\x04\x95", "a pickle"),
    (_ROW.encode("utf-16"), "UTF-16"),
    (_ROW.encode("utf-16-le"), "UTF-16"),
    (_ROW.encode("utf-16-be"), "UTF-16"),
    (_ROW.encode("utf-32"), "UTF-32"),
]
