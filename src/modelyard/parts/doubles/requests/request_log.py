"""The requests that clients have sent to a platform, and how each was answered."""

import logging
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from modelyard.domain.events import CompletionFailed
from modelyard.domain.identity import Principal
from modelyard.parts.doubles.requests.differences import differences
from modelyard.parts.doubles.requests.logged_request import (
    LoggedRequest,
    shown,
    without_secrets,
    words_of,
    words_of_failure,
)
from modelyard.parts.doubles.requests.watched import RequestWatch
from modelyard.parts.doubles.vendors.profiles import Profile, check_profile
from modelyard.parts.doubles.vendors.refusal import parsed
from modelyard.platform.chat.backend_stream import backend_of
from modelyard.platform.platform import Platform
from modelyard.platform.runtime import Runtime
from modelyard.protocols import AsyncBackend, Backend

if TYPE_CHECKING:
    from modelyard.parts.doubles.faults.faults import Faults

AnyBackend = Backend | AsyncBackend

_log = logging.getLogger("modelyard.requests")


class RequestLog(Sequence[LoggedRequest]):
    """The requests to a platform since it is watched, oldest first. Thread-safe."""

    def __init__(self) -> None:
        self.watching: bool = False
        self.profile: Profile | None = None
        self.backend: AnyBackend | None = None
        self.faults: Faults | None = None
        self._lock = threading.Lock()
        self._requests: list[LoggedRequest] = []
        self._in_python: list[str] = []
        self._allowed: set[int] | None = set()

    def begin(self, method: str, path: str, raw: bytes | None) -> LoggedRequest:
        """Note a request that has come, with its body if that is JSON."""
        request = LoggedRequest(method, path, parsed(raw))
        with self._lock:
            self._requests.append(request)
        return request

    def end(self, request: LoggedRequest, status: int, body: bytes) -> None:
        """Note how a request was answered. What was refused goes to the log of the process too, at level INFO."""
        request.status, request.words = status, words_of(body) if status >= 400 else ""
        if request.refused:
            _log.info("refused: %s", " ".join(str(request).split()))

    def note(self, event: object) -> None:
        """Note, of an event of the platform, that what was asked in Python failed: of it there is no request."""
        if isinstance(event, CompletionFailed) and not event.request_id:
            self._in_python.append(f"{event.status} in Python: chat with {shown(event.model, 80)}: {event.code}")

    def __getitem__(self, at: Any) -> Any:
        return self._requests[at]

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[LoggedRequest]:
        return iter(list(self._requests))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | tuple):
            return NotImplemented
        return not differences(other, list(self))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return without_secrets(f"[{', '.join(f'{one.method} {one.path} {one.model}'.rstrip() for one in self)}]")

    def __str__(self) -> str:
        return "\n".join([*(f"{number}. {request}" for number, request in enumerate(self, 1)), *self._in_python])

    @property
    def sent(self) -> list[Any]:
        """The JSON bodies of the requests, oldest first, such as for a snapshot."""
        return [request.body for request in self if request.body is not None]

    def allow_refusals(self, *statuses: int) -> None:
        """Expect refusals with these statuses, or with any: they do not fail the test."""
        if self._allowed is not None:
            self._allowed = (self._allowed | set(statuses)) if statuses else None

    @property
    def swallowed(self) -> list[str]:
        """What nothing answered, and what was refused, unless the test planned or allows it."""
        if self._allowed is None:
            return []
        planned, told = self._planned(), [one.words for one in self]
        refused = [one for one in self if one.refused and one.status not in self._allowed]
        found = [str(one) for one in refused if not any(words in one.words for words in planned)]
        missed = [] if 400 in self._allowed else self._said("missed")
        return found + [without_secrets(words) for words in missed if not any(words in one for one in told)]

    def _planned(self) -> list[str]:
        """Return what the exceptions say that the script gave as answers, or that were scheduled."""
        happened = () if self.faults is None else (one.fault for one in self.faults.happened)
        failures = [fault for fault in happened if isinstance(fault, Exception)]
        return self._said("raised") + [words for failure in failures for words in words_of_failure(failure)]

    def _said(self, name: str) -> list[str]:
        """Return what the backend says, and each that it sends requests to."""
        if self.backend is None:
            return []
        answering = [backend_of(self.backend, entry.id) for entry in self.backend.entries()]
        return [*dict.fromkeys(words for one in [self.backend, *answering] for words in getattr(one, name, ()))]

    def check(self) -> None:
        """Raise AssertionError if the application swallowed a miss or a refusal."""
        __tracebackhide__ = True
        if swallowed := self.swallowed:
            listed = "\n".join(f"- {one}" for one in swallowed)
            raise AssertionError(
                "the application swallowed what was refused; a test that expects it calls "
                f"yard_requests.allow_refusals():\n{listed}"
            )


def log_of(runtime: Runtime, principal: Principal | None = None) -> RequestLog:
    """Return the log of a platform; nothing is kept in it until it is watched."""
    return runtime.cache.slot(RequestLog)


def _backend(runtime: Runtime, principal: Principal) -> AnyBackend:
    return runtime.backend


def _watches(runtime: Runtime, principal: Principal) -> list[RequestWatch]:
    return runtime.cache.watches


def watch_requests(platform: Platform, profile: Profile | None = None) -> RequestLog:
    """Keep the requests that clients send to a platform from now on, in process or to any server of it, and refuse them
    as the vendor of their format does, or that of `profile`. What is refused is logged, by `modelyard.requests`.

    "vllm" refuses hardly more than the platform, and has that server's errors. Raises `InvalidInput` for another
    profile.

        requests = watch_requests(platform)
        ...
        assert requests == [{"model": "support", "messages": ["How do I pay?"]}]
    """
    check_profile(profile)
    log = platform.part(log_of)
    log.watching, log.profile, log.backend = True, profile, platform.part(_backend)
    platform.part(_watches)[:] = [RequestWatch(log, platform.settings.strict_conversations)]
    return log
