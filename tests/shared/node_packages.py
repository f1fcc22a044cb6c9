"""Packages of npm that tests of clients need, pinned by a package.json."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def node_modules(pins: Path) -> Path:
    """The folder of the pinned packages, cached next to the lane's environment. Skips the test without npm."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    home = Path(sys.prefix).parent / f"npm-{hashlib.sha256(pins.read_bytes()).hexdigest()[:16]}"
    if not (home / "complete").exists():
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        shutil.copy(pins, home)
        subprocess.run([npm, "install", "--silent", "--no-audit", "--no-fund"], cwd=home, check=True)
        (home / "complete").touch()
    return home / "node_modules"
