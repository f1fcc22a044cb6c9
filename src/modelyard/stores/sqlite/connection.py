"""Connections to a database file, made alike everywhere."""

import os
from pathlib import Path
from typing import Any

from sqlite_utils.utils import sqlite3  # type: ignore[attr-defined]  # which may be pysqlite3

SQLITE_VERSION: tuple[int, ...] = sqlite3.sqlite_version_info

_STATEMENTS = 256
"""Prepared statements that a connection keeps: more than a platform has."""


def connect(path: str, mode: str, busy_seconds: float) -> Any:
    """A connection that begins no transaction by itself and may pass between threads, one at a time.

    `mode` is "rw", or "ro" for one that changes not even the log beside the file. Neither creates a file.
    """
    return sqlite3.connect(
        f"{Path(path).as_uri()}?mode={mode}",
        uri=True,
        timeout=busy_seconds,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=_STATEMENTS,
    )


def value_of(connection: Any, sql: str) -> Any:
    """The first value that a statement answers."""
    return connection.execute(sql).fetchone()[0]


def create_file(path: str) -> None:
    """Make an empty file that its owner alone may read, durably; leave one that exists as it is.

    An existing database is never opened outside SQLite: closing it would drop the locks that this process holds on it.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return
    sync_folder(os.path.dirname(path))


def sync_file(path: str) -> None:
    """Wait until the bytes of a file are on the disk."""
    _sync(path, os.O_RDWR)


def sync_folder(path: str) -> None:
    """Wait until a folder's list of names is on the disk, where folders can be opened at all."""
    if hasattr(os, "O_DIRECTORY"):
        _sync(path, os.O_DIRECTORY)


def _sync(path: str, flags: int) -> None:
    opened = os.open(path, flags)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
