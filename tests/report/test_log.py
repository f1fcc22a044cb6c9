"""Log lines: what a client has sent cannot forge or hide one."""

import json
import logging
import sys

from modelyard.report.terminal import JsonFormatter, PlainFormatter


def record(message: str, *, raised: bool = False) -> str:
    error = None
    if raised:
        try:
            raise ValueError("one\n2026-01-01 INFO modelyard: forged")
        except ValueError:
            error = sys.exc_info()
    made = logging.LogRecord("modelyard", logging.INFO, "file.py", 1, message, (), error)
    return PlainFormatter().format(made)


def test_a_message_is_one_line_without_control_characters() -> None:
    line = record("model \x1b[2Jx\nINFO modelyard: forged")
    assert "\n" not in line
    assert "\x1b" not in line
    assert line.endswith("INFO modelyard: model ?[2Jx?INFO modelyard: forged")


def test_no_line_of_a_traceback_looks_like_a_record() -> None:
    first, *rest = record("failed", raised=True).splitlines()
    assert first.endswith("failed")
    assert any("forged" in line for line in rest)
    assert all(line.startswith("  ") for line in rest)


def test_a_record_is_one_json_object_on_one_line() -> None:
    made = logging.LogRecord("app", logging.WARNING, "", 0, "a %s", ("line\nbreak\x1b\u2028",), None)
    line = JsonFormatter().format(made)
    assert len(line.splitlines()) == 1
    assert line.isascii()
    found = json.loads(line)
    assert (found["level"], found["logger"], found["message"]) == ("WARNING", "app", "a line\nbreak\x1b\u2028")
    assert found["time"].endswith("+00:00")


def test_a_line_of_the_access_log_has_its_parts_and_a_failure_its_traceback() -> None:
    made = logging.LogRecord("modelyard.access", logging.INFO, "", 0, "x", (), None)
    made.access = {"status": 200, "model": "echo"}
    found = json.loads(JsonFormatter().format(made))
    assert (found["status"], found["model"], "message" in found) == (200, "echo", False)
    try:
        raise ValueError("wrong")
    except ValueError:
        made = logging.LogRecord("app", logging.ERROR, "", 0, "x", (), sys.exc_info())
    assert "ValueError: wrong" in json.loads(JsonFormatter().format(made))["traceback"]
