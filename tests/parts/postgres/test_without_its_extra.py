"""A platform in a file needs nothing of the part that keeps records in PostgreSQL."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
sys.modules["psycopg"] = None
from modelyard import open_platform
from modelyard.errors import MissingExtra

with open_platform("yard.db") as platform:
    print(len(platform.parts), [part.stores for part in platform.parts if part.stores] != [])
try:
    open_platform("postgresql://127.0.0.1:1/yard", artifacts="artifacts")
except MissingExtra as error:
    print(error)
"""


@pytest.mark.slow
def test_a_file_opens_without_psycopg_and_an_address_names_the_extra(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, check=True, capture_output=True, text=True)
    opened, missing = done.stdout.splitlines()
    assert opened.endswith("True")
    assert "modelyard[postgres]" in missing
