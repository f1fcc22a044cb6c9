"""The benchmark for graphics cards runs where there is none, as a dry run, so that it works where there is one."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tape import Recorder

from modelyard.parts.torch import cuda_graphs as graphs

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
TITLES = ("right?", "decode", "prefill", "adapters", "LoRA step", "RL step")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("gpu")


def test_every_table_is_made_without_a_card_and_what_is_answered_is_right(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Recorded passes too, by a recorder that needs no card."""
    monkeypatch.setattr(graphs, "usual_recorder", lambda _: Recorder)
    out = tmp_path / "figures.json"
    report = gpu.main(["--device", "cpu", "--shape", "tiny", "--out", str(out)])
    reported = capsys.readouterr()
    assert json.loads(out.read_text()) == json.loads(reported.out) == report
    for title in TITLES:
        assert f"\n{title} (" in reported.err
        assert not [row for row in report[title] if "failed" in row]
    found = {row["what"]: row for row in report["right?"]}
    assert len(found) >= 5
    assert all(abs(row["found"] - row["ideal"]) < 1e-4 for row in found.values())
    for row in report["decode"]:
        assert all(isinstance(row[f"{way} tok/s"], int) for way in ("anew", "recorded", "generate()"))
        theirs = row["continuous batching tok/s"]
        assert isinstance(theirs, int) or theirs.startswith("ImportError")  # not every version has it
    assert len(report["LoRA step"]) == 4


def test_a_failed_table_is_an_error_and_loses_no_run(gpu: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def table() -> Any:
        yield {"rows": 1, "tok/s": 5}
        raise RuntimeError("no room on the card")

    assert gpu.reported("odd", table()) == [{"rows": 1, "tok/s": 5}, {"failed": "RuntimeError: no room on the card"}]
    assert "no room on the card" in capsys.readouterr().err


def test_without_a_card_the_error_says_what_to_do(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "--device cpu --shape tiny" in gpu.main([])["left out"]
