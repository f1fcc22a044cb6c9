"""Without torch, what needs it names the extra that brings it, and everything else works."""

import subprocess
import sys
from pathlib import Path

import pytest

from modelyard import open_platform
from modelyard.clock import SystemClock
from modelyard.parts.torch.model_folder import read_base_folder
from modelyard.parts.torch.records import Tuning

PROGRAM = """
import sys
from importlib import import_module

sys.modules["torch"] = None
from modelyard import open_platform
from modelyard.errors import JobFailed, MissingExtra

for name in ("parts.torch.tiny_model", "parts.torch.training.trainer", "parts.torch.serving.model_pool"):
    try:
        import_module("modelyard." + name)
    except MissingExtra as missing:
        print(missing)
row = {"messages": [{"role": "user", "content": "ping"}, {"role": "assistant", "content": "pong"}]}
with open_platform(sys.argv[1]) as platform:
    for base in ("tiny", "tabular-mini"):
        platform.models.create(base, project="p", base_model=base)
        try:
            print(platform.training.sft("p/" + base, [row]).wait().status)
        except JobFailed as failed:
            print(failed)
"""
TOLD = "torch is not installed; run: pip install 'modelyard[torch]'"


@pytest.mark.slow
def test_the_extra_is_named_by_all_that_needs_it(base_folder: Path, tmp_path: Path) -> None:
    base = read_base_folder(base_folder).base_model("tiny", "Tiny", Tuning.LORA, SystemClock().now(), {})
    with open_platform(tmp_path / "yard.db") as platform:
        platform._runtime.store.transact(lambda tx: tx.add(base))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "yard.db")], check=True, capture_output=True, text=True
    )
    *imports, local, tabular = done.stdout.splitlines()
    assert imports == [TOLD] * 3
    assert local.endswith(f"failed: {TOLD}")
    assert tabular == "succeeded"
