"""Assertions about what a platform was asked."""

from modelyard.errors import InvalidInput
from modelyard.parts.doubles.requests.differences import differences
from modelyard.parts.doubles.requests.request_log import RequestLog, log_of
from modelyard.platform.platform import Platform


class Expectation:
    """What `expect` returns, to be asserted with."""

    def __init__(self, log: RequestLog) -> None:
        self._log = log

    def requests(self, *wanted: object) -> None:
        """Raise AssertionError, with what differs, unless these were all the requests, in this order.

        Each is a mapping of members of the body: those that it names must be equal, and nested objects are compared in
        the same way. A string stands for the text of the last message, or of the message in its place. `path` and
        `status` are those of the request.
        """
        __tracebackhide__ = True
        found = differences(wanted, list(self._log))
        if found:
            raise AssertionError("\n".join(["the requests differ:", *found]))


def expect(platform: Platform) -> Expectation:
    """Begin an assertion about what a platform that is watched was asked, as the fixture `yard` is.

    expect(yard).requests({"model": "support", "messages": ["How do I pay?"]})
    """
    return Expectation(_watched_log(platform))


def _watched_log(platform: Platform) -> RequestLog:
    """Return the log of a platform that is watched. Raises `InvalidInput` for another one."""
    log = platform.part(log_of)
    if not log.watching:
        raise InvalidInput.at("platform", msg="is not watched; call watch_requests(platform) before it is asked")
    return log
