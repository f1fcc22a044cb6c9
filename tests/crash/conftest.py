"""Worker processes for the tests of this folder, whose own modules are imported by their names."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from warm_python import WarmPython

sys.path.insert(0, str(Path(__file__).parent))

from nursery import Nursery

PARTS = Path(__file__).parents[2] / "src" / "modelyard" / "parts"
WARM = (
    *("modelyard.compose", "modelyard.platform.platform", "modelyard.stores.sqlite", "modelyard.testing"),
    *("modelyard.asgi", "modelyard.cli", "modelyard.cli.working", "modelyard.backends", "modelyard.artifacts.folder"),
    *(f"modelyard.parts.{one.parent.name}.{one.stem}" for one in sorted(PARTS.glob("*/records.py"))),
)
"""What programs of these tests import."""


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    with Nursery() as made:
        yield made


@pytest.fixture(scope="session")
def warm_python() -> Iterator[WarmPython]:
    """A Python for programs that are started by the dozen."""
    with WarmPython(*WARM) as python:
        yield python
