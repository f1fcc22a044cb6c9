"""Commands that write reports: the ending of the file says which."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from modelyard import open_platform
from modelyard.cli import main


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("yard") / "yard.db"
    with open_platform(path) as platform:
        rows = [{"prompt": f"say {n}", "expected": f"say {n}"} for n in range(4)]
        platform.evaluations.run_each("quiz", ["echo", "tabular-mini"], rows, project="desk", max_tokens=4)
    return path


@pytest.mark.parametrize(
    ("ending", "begin"), [("html", "<!DOCTYPE html>"), ("md", "### "), ("xml", "<?xml "), ("csv", "row_digest,")]
)
def test_a_run_and_a_comparison_are_written_by_the_ending(store: Path, tmp_path: Path, ending: str, begin: str) -> None:
    commands = (["report", "quiz@echo"], ["compare", "quiz@echo", "quiz@tabular-mini", "--save"])
    for command in commands:
        file = tmp_path / f"{command[0]}.{ending}"
        result = CliRunner().invoke(main, ["runs", *command, str(file), "--store", str(store)])
        assert result.exit_code == 0, result.output
        assert file.read_text(encoding="utf-8").startswith(begin)


def test_an_evaluation_saves_the_report_of_its_run(store: Path, tmp_path: Path) -> None:
    file, rows = tmp_path / "run.xml", tmp_path / "rows.csv"
    rows.write_text("prompt,expected\nyes,yes\n", encoding="utf-8")
    options = ["--rows", str(rows), "--project", "desk", "--save", str(file), "--store", str(store)]
    result = CliRunner().invoke(main, ["evaluate", "quiz", "echo", *options])
    assert result.exit_code == 0, result.output
    assert '<testsuite name="echo on quiz' in file.read_text(encoding="utf-8")
