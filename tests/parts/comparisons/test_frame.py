"""Runs as a data frame, with pandas and without."""

import subprocess
import sys
from typing import Any

import attrs
import pytest

from modelyard import open_platform
from modelyard.errors import InvalidInput, MissingExtra, NotFound

ROWS = [{"prompt": f"say {at}", "expected": f"say {at}" if at else ""} for at in range(4)]
pandas = pytest.importorskip("pandas")


def test_each_run_is_a_line_with_its_scores() -> None:
    with open_platform(project="p") as platform:
        runs = platform.evaluations
        plain = runs.run("quiz", "echo", ROWS, "exact_match")
        short = runs.run("quiz", "echo", ROWS, ["token_f1", "exact_match"], trials=2, prompt="say {prompt}")
        frame = runs.to_pandas([short, plain.run, plain.run.id])
        assert list(frame.index) == [short.run.id, plain.run.id, plain.run.id]
        assert list(frame["trials"]) == [8, 4, 4]
        assert frame["exact_match"].iloc[1] == plain.run.summary["mean"] == 0.75  # type: ignore[index]
        assert frame["token_f1"].isna().tolist() == [False, True, True]
        assert frame["prompt"].iloc[0] == "say {prompt}"
        assert str(frame["started_at"].dtype).startswith("datetime64")
        assert list(runs.to_pandas(runs.runs.list())["model"]) == ["echo", "echo"]
        assert runs.to_pandas([]).empty


@pytest.mark.parametrize("wrong", ["a", 5, None])
def test_one_run_is_refused(wrong: Any) -> None:
    with open_platform(project="p") as platform:
        with pytest.raises(InvalidInput):
            platform.evaluations.to_pandas(wrong)
        with pytest.raises(NotFound):
            platform.evaluations.to_pandas(["no-such-run"])


def test_without_pandas_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with open_platform() as platform, pytest.raises(MissingExtra, match="pandas"):
        platform.evaluations.to_pandas([])


@pytest.mark.slow
def test_pandas_is_loaded_by_no_other_call() -> None:
    program = (
        "import sys\nfrom modelyard import open_platform\n"
        "with open_platform(project='p') as p:\n"
        "    p.evaluations.run('quiz', 'echo', [{'prompt': 'a', 'expected': 'a'}], 'exact_match')\n"
        "    p.evaluations.runs.list()._repr_html_()\n    p.evaluations.to_pandas\n"
        "assert 'pandas' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_no_metric_and_no_prompt_takes_the_column_of_another() -> None:
    def scorer(name: str, score: float) -> Any:
        def judge(row: Any, output: Any) -> float:
            return score

        judge.__name__ = name
        return judge

    with open_platform(project="p") as platform:
        runs = platform.evaluations
        first = runs.run("quiz", "echo", ROWS, [scorer("model", 0.25), scorer("state", 0.5)])
        other = runs.run("quiz", "echo", ROWS, [scorer("prompt", 0.75), scorer("trials", 0.0)], prompt="say {prompt}")
        third = runs.run("quiz", "echo", ROWS, [scorer("model", 1.0)])
        frame = runs.to_pandas([first, other, third])
    assert list(frame["model"]) == ["echo"] * 3
    assert list(frame["state"]) == ["completed"] * 3
    assert list(frame["trials"]) == [4] * 3
    assert frame["prompt"].iloc[1] == "say {prompt}"
    assert frame["metric.prompt"].iloc[1] == 0.75
    assert frame["metric.trials"].iloc[1] == 0.0
    assert frame["metric.model"].iloc[0] == 0.25
    assert frame["metric.model"].iloc[2] == 1.0
    assert frame["metric.state.scored"].iloc[0] == 4


def test_columns_of_names_that_meet_stay_apart() -> None:
    with open_platform(project="p") as platform:
        run = platform.evaluations.run("quiz", "echo", ROWS, "exact_match").run
        names = ("prompt", "prompt.scored", "metric.prompt", "model")
        scorers = {name: {"mean": at, "scored": 1} for at, name in enumerate(names)}
        prompts = {"prompt": "p", "system": "m"}
        clashing = attrs.evolve(run, summary={"scorers": scorers, "prompts": prompts})
        frame = platform.evaluations.to_pandas([clashing])
        assert [[*frame[name]] for name in ("model", "prompt", "system")] == [["echo"], ["p"], ["m"]]
        assert len(frame.columns) == 7 + 2 + 2 * len(names) == len(set(frame.columns))
        assert sorted(frame.select_dtypes("number").iloc[0]) == [0, 1, 1, 1, 1, 1, 2, 3]
