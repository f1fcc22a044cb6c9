"""The benchmark for graphics cards runs where there is none, as a dry run, so that it works where there is one."""

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_every_table_is_made_without_a_card_and_what_is_answered_is_right(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    report = importlib.import_module("gpu").main(["--device", "cpu", "--shape", "tiny"])
    greedy, seeds, apart = (row["share"] for row in report["right?"])
    assert (greedy, seeds) == (1.0, 1.0)
    assert apart < 1e-4
    tables = ("decode", "prefill", "adapters", "LoRA step", "RL step")
    assert all(report[name] for name in tables)
    told = capsys.readouterr().err
    assert all(f"\n{name}\n" in told for name in tables)
