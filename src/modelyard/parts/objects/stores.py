"""Buckets of object stores by their addresses, and the folder of local copies of each."""

import hashlib
import os
import stat
import tempfile
from datetime import timedelta
from typing import Any

from modelyard.errors import InvalidInput, MissingExtra, StoreError

try:
    from obstore.exceptions import BaseError
    from obstore.store import from_url
except ImportError as error:
    raise MissingExtra("obstore", "objects") from error

CLIENT: Any = {"allow_http": True, "connect_timeout": "10s", "read_timeout": "60s", "timeout": "30min"}
"""A request may take long, as the bytes of an artifact do, but not stand still for a minute. Only an endpoint that the
environment names can be one without encryption.
"""

RETRIES: Any = {
    "max_retries": 8,
    "retry_timeout": timedelta(seconds=90),
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=8), "base": 2},
}
"""About half a minute of patience with a store that is busy or away."""


PROBE_CLIENT: Any = {"allow_http": True, "connect_timeout": "5s", "read_timeout": "5s", "timeout": "5s"}
PROBE_RETRIES: Any = {**RETRIES, "max_retries": 1, "retry_timeout": timedelta(seconds=12)}
"""About ten seconds in all, for a question with a short answer: an object store that hangs is found by it."""


def probe_at(address: str) -> Any:
    """Return the store of `bucket_at` for short questions, which waits for ten seconds at most."""
    return from_url(address, client_options=PROBE_CLIENT, retry_config=PROBE_RETRIES)


def bucket_at(address: str) -> Any:
    """Return the store of obstore for `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`.

    It takes credentials, region and endpoint from the environment variables of the store, or from the machine.
    Raises `InvalidInput`.
    """
    try:
        return from_url(address, client_options=CLIENT, retry_config=RETRIES)
    except (BaseError, ValueError) as error:
        msg = f"{address!r} cannot be opened ({_first_line(error)}); set the environment variables of its object store"
        raise InvalidInput.at("artifacts", msg=msg) from None


def cache_of(address: str) -> str:
    """Return the folder of local copies of one address, which this user's processes share and no other user may open.

    Raises `StoreError`.
    """
    own = os.path.join(tempfile.gettempdir(), f"modelyard-{os.getuid()}")
    try:
        os.makedirs(own, mode=0o700, exist_ok=True)
        found = os.lstat(own)
    except OSError as error:
        raise StoreError(f"{own} cannot be made: {error.strerror}; set TMPDIR to a folder that can be used") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise StoreError(f"{own} must be a folder of this user alone; remove it, or set TMPDIR to another folder")
    return os.path.join(own, hashlib.sha256(address.encode()).hexdigest()[:16])


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
