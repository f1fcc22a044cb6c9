"""The pages of prompt jobs, and their command."""

import json
from pathlib import Path

from click.testing import CliRunner

from modelyard import ScriptedBackend, open_platform
from modelyard.cli import main
from modelyard.http.message import Request
from modelyard.parts.dashboard.app import Dashboard
from prompt_tasks import BEGIN, MANY, MODELS, TASKS, contains, script


def test_a_job_is_shown_with_its_proposals_and_what_each_changes() -> None:
    with open_platform(backend=ScriptedBackend(script, MODELS)) as platform:
        dashboard = Dashboard(platform, reader=platform.principal)

        def page(path: str) -> str:
            answer = dashboard.handle(Request("GET", f"/dashboard/{path}", "", [("host", "localhost")], iter([])))
            assert answer.status == 200, answer.body
            assert isinstance(answer.body, bytes)
            return answer.body.decode()

        platform.variants.publish("desk/support", model="scripted", system=BEGIN)
        job = platform.training.prompt("desk/support", TASKS, contains, reflection="thinker", calls=100, seed=3)
        assert job.version().number == 2
        assert "desk/support" in page("prompts")
        shown = page(f"prompts/{job.id}")
        assert f"<ins>+{job.proposals()[1].text}" in shown.replace("\n", "")
        assert f"<del>-{BEGIN}" in shown
        assert "version 2" in shown
        assert shown.count('class="chip better">best') == 1
        assert "PROMPT job" in page(f"jobs/{job.id}")


def test_an_improvement_is_shown_with_its_roads_against_their_money() -> None:
    with open_platform(backend=ScriptedBackend(script, MODELS)) as platform:
        dashboard = Dashboard(platform, reader=platform.principal)

        def page(path: str) -> str:
            answer = dashboard.handle(Request("GET", f"/dashboard/{path}", "", [("host", "localhost")], iter([])))
            assert answer.status == 200, answer.body
            assert isinstance(answer.body, bytes)
            return answer.body.decode()

        platform.variants.publish("desk/support", model="scripted", system=BEGIN)
        roads = [platform.improve.prompt(reflection=one, calls=300) for one in ("thinker", "fool")]
        made = platform.improve("desk/support", MANY, contains, roads=roads, name="better", seed=1)
        assert "Quality against money" not in page(f"improvements/{made.id}")
        made.wait()
        assert "desk/better" in page("improvements")
        shown = page(f"improvements/{made.id}")
        assert "Take local/desk/support@2" in shown
        assert "score on unseen rows" in shown
        for job in platform.training.list():
            assert f"jobs/{job.id}" in shown


def test_a_prompt_is_optimised_from_the_command_line(tmp_path: Path) -> None:
    store, rows = str(tmp_path / "yard.db"), tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": one["prompt"], "expected": one["prompt"]}) + "\n" for one in TASKS))
    with open_platform(store) as platform:
        platform.variants.publish("desk/support", model="echo", system=BEGIN)

    def say(*words: str, code: int = 0) -> str:
        given = ["train", "prompt", "desk/support", str(rows), *words, "--store", store]
        found = CliRunner().invoke(main, given)
        assert found.exit_code == code, found.output
        return found.output

    asked = ("--reflection", "echo", "--reward", '{"type": "exact_match"}', "-o", "calls=20", "-o", "seed=1")
    said = say(*asked)
    assert said.splitlines()[-1] == "desk/support@1 has the best prompt: 1 on the held-out tasks, 1 before"
    assert "must be an amount in USD" in say(*asked, "--budget", "much", code=1)
    assert "did you mean 'calls'" in say(*asked, "-o", "call=3", code=2)
    assert "is no JSON" in say("--reflection", "echo", "--reward", "{", code=2)
    job = say(*asked, "--no-wait").strip()
    with open_platform(store) as platform:
        assert platform.training.get(job).status == "queued"


def test_roads_are_gone_from_the_command_line(tmp_path: Path) -> None:
    store, rows = str(tmp_path / "yard.db"), tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": one["prompt"], "expected": "x"}) + "\n" for one in TASKS))
    with open_platform(store) as platform:
        platform.variants.publish("desk/support", model="tabular-mini", system=BEGIN)

    def say(*words: str, code: int = 0) -> str:
        found = CliRunner().invoke(main, ["improve", *words, "--store", store])
        assert found.exit_code == code, found.output
        return found.output

    asked = ("start", "desk/support", str(rows), "--reward", "token_f1", "--seed", "1", "--name", "autumn")
    prompt = '{"road": "prompt", "reflection": "tabular-mini", "calls": 6, "reflection_max_tokens": 8, "max_tokens": 8}'
    assert "where all began" in say(*asked, "--road", prompt, "--road", "sft")
    assert "autumn" in say("list")
    assert "where all began" in say("show", "desk/autumn", "--save", str(tmp_path / "roads.html"))
    assert "where all began" in (tmp_path / "roads.html").read_text()
    assert [one["road"] for one in json.loads(say("show", "desk/autumn", "--json"))["roads"]] == ["prompt", "sft"]
    assert "roads.0.road: must be one of prompt, sft" in say(*asked, "--road", "fly", code=1)
    assert "roads.1.reflection: is required" in say(*asked, "--road", "sft", "--road", "prompt", code=1)
    assert "--road is no JSON" in say(*asked, "--road", "{sft", code=2)
    assert "not found" in say("show", "desk/spring", code=1)
