"""Importing modelyard and opening a platform load little and start nothing."""

import json
import subprocess
import sys

PROBE = """
import sys, threading, json
before = set(sys.modules)
import modelyard
with modelyard.open_platform() as platform:
    platform.chat.complete(model="echo", messages="hi")
    threads = threading.active_count()
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
outside = sorted(name for name in loaded if name not in sys.stdlib_module_names)
print(json.dumps({"outside": outside, "threads": threads, "sqlite": "sqlite_utils" in sys.modules}))
"""


def probe(code: str) -> dict[str, object]:
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_a_platform_in_memory_loads_attrs_only_and_starts_no_thread() -> None:
    found = probe(PROBE)
    assert set(found["outside"]) <= {"attr", "attrs", "modelyard"}  # type: ignore[call-overload]
    assert found["threads"] == 1
    assert found["sqlite"] is False


def test_a_missing_extra_says_which_command_installs_it() -> None:
    missing = """
import sys, json
sys.modules["uvicorn"] = None
from click.testing import CliRunner
from modelyard.cli import main
result = CliRunner().invoke(main, ["serve", "--store", "x.db"])
print(json.dumps({"status": result.exit_code, "says": result.output}))
"""
    found = probe(missing)
    assert found["status"] == 1
    assert "pip install 'modelyard[serve]'" in str(found["says"])
