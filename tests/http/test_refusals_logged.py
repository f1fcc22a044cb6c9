"""A refusal in the log: that it was refused and where, at a level that hosts choose, and nothing of what was sent."""

import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from modelyard import Platform, open_platform
from modelyard.http.endpoint import Endpoint
from modelyard.http.message import Request

SECRET = "ym-not-for-logs"
REFUSED: dict[int, tuple[str, str, bytes, str]] = {
    400: ("POST", "/v1/chat/completions", b'{"model": "m", "messages": [{"role": "%s"}]}', "messages[0].role"),
    401: ("GET", "/v1/models", b"", "invalid_api_key"),
    404: ("GET", "/v1/nothing/there", b"", "unknown_route"),
    405: ("DELETE", "/v1/models", b"", "method_not_allowed"),
    422: ("POST", "/preview/%s", b"{", ""),
}


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform() as opened:
        yield opened


def refused(platform: Platform, status: int) -> str:
    """Ask so that it is refused; returns the status line of the log."""
    method, path, body, _ = REFUSED[status]
    key = b"none" if status == 401 else platform.keys.create(entity="acme").secret.encode()
    headers = [(b"authorization", b"Bearer " + key), (b"content-type", b"application/json")]
    request = Request(method, path, "", headers, iter([body.replace(b"%s", SECRET.encode())]))
    return str(Endpoint(platform).handle(request).status)


@pytest.mark.parametrize("status", [400, 401, 404, 405])
def test_a_refusal_is_a_line_of_its_own_at_info_with_its_code_and_place(
    platform: Platform, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    with caplog.at_level(logging.INFO, "modelyard.http"):
        assert refused(platform, status) == str(status)
    (line,) = [record for record in caplog.records if record.name == "modelyard.http"]
    assert (line.levelno, f"was refused with {status}" in line.getMessage()) == (logging.INFO, True)
    assert REFUSED[status][3] in line.getMessage()
    assert SECRET not in caplog.text


def test_the_words_of_a_refusal_which_may_quote_it_are_there_at_debug_only(
    platform: Platform, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "modelyard.http"):
        refused(platform, 400)
    assert "must be" in caplog.text


def test_places_of_the_caller_are_short_and_forge_no_line(platform: Platform, caplog: pytest.LogCaptureFixture) -> None:
    body = b'{"model": "m", "messages": [], "a\\nb%s": 1}' % (b"x" * 5000)
    headers = [(b"authorization", f"Bearer {platform.keys.create(entity='acme').secret}".encode())]
    with caplog.at_level(logging.INFO, "modelyard.http"):
        Endpoint(platform).handle(Request("POST", "/v1/chat/completions", "", headers, iter([body])))
    (line,) = [record.getMessage() for record in caplog.records if record.name == "modelyard.http"]
    assert len(line) < 400
    assert "\n" not in line


UNCONFIGURED = """
from modelyard import open_platform
from modelyard.http.error_responses import ERROR, failed
from modelyard import errors
later = errors.Overloaded("later"), errors.StoreBusy("later")
for refusal in (*later, errors.Conflict("no"), errors.RateLimited("no", 1)):
    failed(refusal, ERROR, "req-1")
"""


@pytest.mark.slow
def test_without_logging_no_refusal_is_written_to_the_terminal() -> None:
    ended = subprocess.run([sys.executable, "-c", UNCONFIGURED], capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("", "")
