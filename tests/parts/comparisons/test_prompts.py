"""Prompts as an option of the command line, and on the pages that show and compare runs."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from click.testing import CliRunner

from modelyard import open_platform
from modelyard.cli import main
from modelyard.domain.identity import host
from modelyard.http.message import Request
from modelyard.parts.dashboard.app import Dashboard


def call(*arguments: object) -> str:
    told = CliRunner().invoke(main, [str(one) for one in arguments])
    assert told.exit_code == 0, told.output
    return told.output


def test_two_prompts_of_a_model_are_two_rows_of_every_list_and_table(yard_file: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f"{json.dumps({'q': str(n), 'expected': f'Say {n}'})}\n" for n in range(12)))
    asked = ("evaluate", "quiz", "echo", "--store", yard_file, "--rows", rows, "--project", "p")
    call(*asked, "--prompt", "Say {q}", "--system", "Be <brief>.")
    call(*asked, "--prompt", "{q}")
    listed = call("runs", "list", "--store", yard_file)
    assert "prompt 'Say {q}'" in listed
    assert "system 'Be <brief>.'" in listed
    with open_platform(yard_file) as platform:
        plain, said = platform.evaluations.runs.list_all(order="desc")
        table = str(platform.evaluations.compare_all([plain, said]))
        assert "echo, system 'Be <brief>.', prompt 'Say {q}' is better than echo, prompt '{q}' on exact_match." in table
        reader: Any = Dashboard(platform, reader=host())

        def page(path: str, **query: str) -> str:
            request = Request("GET", f"/dashboard/{path}", urlencode(query), [("host", "127.0.0.1")], iter([b""]))
            body: Any = reader.handle(request).body
            return (body if isinstance(body, bytes) else b"".join(body)).decode()

        for shown in (page("runs"), page(f"runs/{said.id}"), page("compare", baseline=plain.id, candidate=said.id)):
            assert "Say {q}" in shown
            assert "<brief>" not in shown
            assert "Be &lt;brief&gt;." in shown
        assert "Scores of these models" in page("runs")  # a line for each prompt
        assert "2 runs compared, all pairs" in page("comparisons/evaluation", name=said.evaluation)


def test_models_and_prompts_that_read_alike_in_short_are_rows_and_choices_of_their_own(yard_file: Path) -> None:
    long = "You answer questions about bicycles, briefly, with care and in English"
    asked: list[dict[str, str]] = [
        {"system": "X {q}"},
        {"prompt": "X {q}"},
        {"system": f"{long}. {{q}}"},
        {"system": f"{long}, or not. {{q}}"},
    ]
    with open_platform(yard_file, project="demo") as platform:
        rows = [{"q": str(n), "prompt": "p", "expected": "a"} for n in range(4)]
        runs = [platform.evaluations.run("quiz", "echo", rows, **each).run for each in asked]
        for project in ("one", "two"):
            start = platform.evaluations.runs.create(
                "weave:///local/demo/object/quiz:v", f"weave:///local/{project}/object/same:v1", project="demo"
            )
            platform.evaluations.runs.finish(start.id, {"mean": 0.5, "scorer": "exact_match"})
        reader: Any = Dashboard(platform, reader=host())

        def page(path: str, **query: str) -> str:
            request = Request("GET", f"/dashboard/{path}", urlencode(query), [("host", "127.0.0.1")], iter([b""]))
            body: Any = reader.handle(request).body
            return (body if isinstance(body, bytes) else b"".join(body)).decode()

        matrix = page("runs").split("Scores of these models")[-1]
        names = [line.split("</td>")[0] for line in matrix.split("<tr>")[2:]]
        assert len(names) == len({*names}) == 6
        compared = page("comparisons/evaluation", name=runs[0].evaluation)
        assert "4 runs compared, all pairs" in compared
        links = compared.split("or with")[1].split("</p>")[0].split("</a>")[:-1]
        assert len({link.split(">")[-1] for link in links}) == 4


def test_a_prompt_that_all_runs_share_is_not_repeated() -> None:
    with open_platform(project="d") as platform:
        rows = [{"prompt": str(n), "expected": str(n)} for n in range(4)]

        def run(**prompts: str) -> Any:
            return platform.evaluations.run("quiz", "echo", rows, max_tokens=2, **prompts)

        one, other, third = run(system="Be brief."), run(system="Be brief."), run(system="Be kind.")
        assert "Be brief" not in str(platform.evaluations.compare(one, other))
        assert "Be brief" not in str(platform.evaluations.compare_all([one, other]))
        for compared in (platform.evaluations.compare(one, third), platform.evaluations.compare_all([one, third])):
            assert "Be brief" in str(compared)
            assert "Be kind" in str(compared)
        assert "Be brief" in str(platform.evaluations.report(one))
