"""A method that takes a path to write refuses an address, and a folder that is not there, by name."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modelyard import Platform, open_platform
from modelyard.errors import InvalidInput

ROWS = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}] * 2
DATA = [{"prompt": "a", "expected": "a"}]


def writers(platform: Platform) -> dict[str, tuple[str, Callable[[str], Any]]]:
    """Each method that writes a file, with the ending of its name."""
    model = platform.models.create("m", project="p", base_model="tabular-mini")
    job = platform.training.sft(model, ROWS)
    job.wait()
    run = platform.evaluations.run("e", "echo", DATA, scorers=["exact_match"])
    keep = platform.keep
    compared = platform.evaluations.compare(run, run)
    return {
        "keep.events": ("", lambda path: keep.events(3, export=path)),
        "keep.ledger": ("", lambda path: keep.ledger(3, export=path)),
        "keep.runs": ("", lambda path: keep.runs(3, export=path)),
        "backup": ("", platform.backup),
        "job.save": (".html", job.save),
        "models.save": (".html", lambda path: platform.models.save(model, path)),
        "metrics.save": (".csv", job.metrics().save),
        "run.save": (".html", platform.evaluations.report(run).save),
        "comparison.save": (".html", compared.save),
        "write": (".json", lambda path: platform.evaluations.inspect.write(run, path)),
    }


def test_a_place_that_takes_no_file_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open_platform(tmp_path / "yard.db") as platform:
        for name, (ending, write) in writers(platform).items():
            before = sorted(os.listdir())
            with pytest.raises(InvalidInput, match="and not an address that begins with s3"):
                write(f"s3://b/x{ending}")
            with pytest.raises(InvalidInput, match=r"there is no folder .*; make it first, or name another place"):
                write(str(tmp_path / "none" / f"x{ending}"))
            assert sorted(os.listdir()) == before, name
