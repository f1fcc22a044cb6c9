"""Log lines: what a client has sent cannot forge or hide one."""

import logging
import sys

from modelyard.report.terminal import PlainFormatter


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
