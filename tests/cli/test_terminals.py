"""Terminals of any encoding, and bytes that are not text: an answer or a sentence, and never a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.parts

PROGRAM = [sys.executable, "-c", "from modelyard.cli import main; main()"]
SAID = "café 🙂"


def run(where: Path, *words: str | bytes, encoding: str = "utf-8", given: bytes = b"") -> tuple[int, bytes, bytes]:
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([*PROGRAM, *words], input=given, capture_output=True, env=environment, cwd=where, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.servers
@pytest.mark.parametrize(
    ("encoding", "shown"), [("cp1252", "café \\U0001f642"), ("ascii", "caf\\xe9 \\U0001f642"), ("utf-8", SAID)]
)
def test_an_answer_is_shown_on_a_terminal_of_any_encoding(encoding: str, shown: str, tmp_path: Path) -> None:
    code, out, failed = run(tmp_path, "ask", "echo", SAID, encoding=encoding)
    assert (code, out.decode(encoding), failed) == (0, f"{shown}\n".replace("\n", os.linesep), b"")


@pytest.mark.servers
@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["catalogue"],
        ["doctor"],
        ["keys", "create", "--name", "café"],
        ["models", "é"],
    ],
)
def test_no_command_ends_in_a_traceback_for_its_characters(words: list[str], tmp_path: Path) -> None:
    _, out, failed = run(tmp_path, *words, encoding="ascii")
    assert b"Traceback" not in out + failed


@pytest.mark.servers
def test_standard_input_is_read_in_its_encoding(tmp_path: Path) -> None:
    assert run(tmp_path, "ask", "echo", given=SAID.encode()) == (0, f"{SAID}\n".encode(), b"")
    assert run(tmp_path, "ask", "echo", given="café".encode("cp1252"), encoding="cp1252")[1] == "café\n".encode(
        "cp1252"
    )


@pytest.mark.servers
def test_what_is_not_text_is_told_as_that(tmp_path: Path) -> None:
    code, _, failed = run(tmp_path, "ask", "echo", given=b"caf\xe9")
    assert (code, b"standard input is not utf-8: byte 3 is 0xe9" in failed, b"surrogate" in failed) == (1, True, False)
    code, _, failed = run(tmp_path, "ask", "echo", b"caf\xe9")
    assert (code, b"bytes that are not UTF-8" in failed, b"surrogate" in failed) == (2, True, False)
