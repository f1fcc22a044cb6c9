"""How much of what the package exports has a declared type, as `pyright --verifytypes` counts it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LEAST = 0.99
TORCH = "/parts/torch/"
"""Torch's own types are unknown where it is not installed, and with them what is made of them."""


@pytest.mark.types
def test_nearly_everything_that_is_exported_has_a_declared_type() -> None:
    """Run pyright as an application's developer would, in this environment."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    command = [sys.executable, "-m", "pyright", "--verifytypes", "modelyard", "--ignoreexternal", "--outputjson"]
    ran = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True)
    exported = [symbol for symbol in json.loads(ran.stdout)["typeCompleteness"]["symbols"] if symbol["isExported"]]
    assert len(exported) > 5000
    incomplete = {
        symbol["name"]
        for symbol in exported
        if not symbol["isTypeKnown"] or symbol["isTypeAmbiguous"]
        if not any(TORCH in problem["file"] for problem in symbol["diagnostics"])
    }
    assert len(incomplete) <= (1 - LEAST) * len(exported), sorted(incomplete)
