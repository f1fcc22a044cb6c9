"""The errors of an object store, as errors that say what to do. They repeat nothing that it sent: it may quote keys."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from modelyard.artifacts.naming import missing
from modelyard.errors import ArtifactsUnavailable, MissingExtra, StorageFull, StoreError

try:
    from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
except ImportError as error:
    raise MissingExtra("obstore", "objects") from error

_CODE = re.compile(r"<Code>(\w{1,60})</Code>|error occurred \((\w{1,60})\)")
_STATUS = re.compile(r"status(?: code)?:? (\d{3})|\b([45]\d\d) [A-Z][a-z]+")
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist|container does not exist", re.IGNORECASE)


def _lasting(message: str) -> StoreError:
    """Make the error of an address, or of credentials, that are wrong until somebody corrects them."""
    made = ArtifactsUnavailable(message)
    made.lasting = True
    return made


_KINDS: tuple[tuple[Callable[[str], StoreError], str, str], ...] = (
    (
        ArtifactsUnavailable,
        r"RequestTimeTooSkewed|RequestExpired",
        "refuses the time of this machine, whose clock differs from its own; set the clock, then try again",
    ),
    (
        StorageFull,
        r"QuotaExceeded|InsufficientStorage|StorageFull|EntityTooLarge|\b507\b",
        "has no room for this artifact; free some or raise the quota, then try again",
    ),
    (
        ArtifactsUnavailable,
        r"SlowDown|ServerBusy|ServiceUnavailable|TooManyRequests|OperationTimedOut|\b(?:429|503)\b",
        "is too busy, also after several attempts; try again later",
    ),
    (
        _lasting,
        r"AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|InvalidToken|Authenti|Authoriz"
        r"|NoAuthenticationInformation|[Cc]redential|Forbidden|\b(?:401|403)\b",
        "refuses the credentials; check that they are set, valid, and may read, write, list and delete there",
    ),
    (
        ArtifactsUnavailable,
        r"kind: (?:Connect|Timeout|Unknown|Request|Interrupted)|error sending request|timed out|Connect|dns",
        "cannot be reached; check the network, the endpoint and the region",
    ),
)


def to_store_error(fault: BaseException, place: str) -> StoreError:
    """Make the error for a fault of the object store at `place`, its bucket. Nothing that it sent is repeated."""
    text = f"{type(fault).__name__} {fault}"
    if _NO_BUCKET.search(text):
        return _lasting(f"there is no {place}; create it, or correct the address of the artifacts")
    if isinstance(fault, PermissionDeniedError | UnauthenticatedError) and "TimeTooSkewed" not in text:
        text = "AccessDenied " + text
    for kind, pattern, advice in _KINDS:
        if re.search(pattern, text):
            return kind(f"the object store of {place} {advice}{_code_of(text)}")
    return ArtifactsUnavailable(
        f"the object store of {place} failed{_code_of(text)}; look into its log, then try again"
    )


def is_silence(fault: BaseException) -> bool:
    """Return whether the object store did not answer in time."""
    return re.search(r"kind: Timeout|timed out", str(fault)) is not None


def _code_of(text: str) -> str:
    """Return the code and the status in brackets, as far as the response has them."""
    found = (one.search(text) for one in (_CODE, _STATUS))
    words = [next(filter(None, match.groups())) for match in found if match]
    return f" ({', '.join(words)})" if words else ""


class Border:
    """Converts the faults of obstore to errors of modelyard. `place` names the bucket."""

    def __init__(self, place: str) -> None:
        self._place = place

    @contextmanager
    def crossed(self, name: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError) as fault:
            if isinstance(fault, FileNotFoundError) and not _NO_BUCKET.search(str(fault)):
                raise missing(name) from None
            raise to_store_error(fault, self._place) from None
        except BaseException as fault:
            if type(fault).__name__ != "PanicException":  # of obstore's language: it gives no other sign
                raise
            raise _lasting(f"the endpoint of the object store of {self._place} is malformed; correct it") from None

    def ask(self, name: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        with self.crossed(name):
            return call(*arguments, **options)
