"""The tools without the package that speaks MCP: what they answer, how much, and what they refuse."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from modelyard import Platform, open_platform
from modelyard.cli import main
from modelyard.parts.mcp.answers import MOST, answered, bounded
from modelyard.parts.mcp.tools import ACTS, TOOLS, AgentTool, tools_for
from modelyard.testing import ManualClock

READS = tools_for(())
ALL = tools_for(ACTS)


@pytest.fixture
def yard() -> Iterator[Platform]:
    with open_platform(clock=ManualClock()) as platform:
        yield platform


def answer(platform: Platform, tool: str, **arguments: Any) -> Any:
    text, failed = answered(platform, ALL, tool, arguments)
    assert not failed, text
    assert len(text) <= MOST
    return json.loads(text)


def refusal(platform: Platform, tool: str, tools: Any = ALL, **arguments: Any) -> str:
    text, failed = answered(platform, tools, tool, arguments)
    assert failed
    assert "\n" not in text
    return text


def rows(count: int, of: str = "row") -> list[dict[str, str]]:
    return [{"prompt": f"{of} {at}", "expected": f"{of} 1"} for at in range(count)]


def test_what_reads_is_always_there_and_what_acts_only_where_it_is_allowed() -> None:
    acting = {tool.name for tool in TOOLS if tool.act}
    assert READS.keys() == {tool.name for tool in TOOLS} - acting
    assert tools_for(["promote"]).keys() - READS.keys() == {"promote", "roll_out", "roll_back"}
    assert tools_for(["train"]).keys() - READS.keys() == {"create_model", "improve", "train"}
    assert ALL.keys() - READS.keys() == acting


def test_each_tool_says_what_it_does_and_takes_and_refuses_what_it_does_not_know(yard: Platform) -> None:
    for tool in TOOLS:
        assert tool.help.endswith(".")
        assert all("description" in json.dumps(field) for field in tool.schema["properties"].values())
        assert refusal(yard, tool.name, bogus=1).startswith(("bogus: is not known", "baseline: "))
    assert size(READS) < 8_200
    assert size(ALL) < 15_000


def size(tools: Mapping[str, AgentTool]) -> int:
    """How much a client reads before it asks anything."""
    return len(json.dumps([[tool.name, tool.help, tool.schema] for tool in tools.values()]))


def test_roads_are_gone_and_told(yard: Platform, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps(one) + "\n" for one in [*rows(6), *rows(6, "other row")]))
    yard.variants.publish("desk/support", model="echo", system="Say it.")
    road = {"road": "prompt", "reflection": "echo", "calls": 4}
    asked = {"target": "desk/support", "tasks": str(tasks), "reward": "exact_match", "roads": [road], "name": "autumn"}
    assert refusal(yard, "improve", READS, **asked).startswith("there is no tool 'improve'")
    assert refusal(yard, "improve", **{**asked, "roads": ["fly"]}).startswith("roads.0.road: must be one of")
    made = answer(yard, "improve", **asked, idempotency_key="once")
    assert answer(yard, "improve", **asked, idempotency_key="once") == made
    assert answer(yard, "improvement", improvement=made["improvement"])["roads"][0]["road"] == "prompt"
    yard.worker().run_until_idle()
    assert "keep it" in answer(yard, "improvement", improvement="desk/autumn")["text"]


def test_pages_follow_each_other_to_the_end(yard: Platform) -> None:
    for at in range(5):
        yard.models.create(f"m{at}", project="desk", base_model="tabular-mini")
    names, after = [], None
    while True:
        page = answer(yard, "models", limit=2, **({"after": after} if after else {}))
        names += [one["name"] for one in page["items"]]
        after = page["next"]
        if after is None:
            break
    assert names == [f"desk/m{at}" for at in (4, 3, 2, 1, 0)]


def test_rows_of_a_run_follow_each_other_by_row_and_trial(yard: Platform) -> None:
    yard.evaluations.run("quiz", "echo", rows(3), project="desk", trials=2)
    seen, after = [], None
    while True:
        page = answer(yard, "run_rows", run="quiz", limit=4, **({"after": after} if after else {}))
        seen += [(one["index"], one["trial"]) for one in page["items"]]
        after = page["next"]
        if after is None:
            break
    assert seen == [(row, trial) for row in range(3) for trial in range(2)]
    assert refusal(yard, "run_rows", run="quiz", after="x") == "after: must be the `next` of the page before"


def test_a_run_and_a_comparison_are_told_in_numbers(yard: Platform) -> None:
    first = yard.evaluations.run("quiz", "echo", rows(3), project="desk").run
    second = yard.evaluations.run("quiz", "echo", rows(3), project="desk", temperature=1).run
    assert answer(yard, "run", run=first.id)["summary"]["mean"] == pytest.approx(1 / 3)
    assert "exact_match" in answer(yard, "run", run="quiz")["report"]
    assert "exact_match" in answer(yard, "compare_runs", runs=[first.id, second.id])["text"]
    assert refusal(yard, "run", run="quiz@ech") == (
        "there is no run quiz@ech; did you mean 'quiz@echo'?; modelyard runs list shows them"
    )


def test_what_was_used_is_exact_and_by_groups(yard: Platform) -> None:
    yard.evaluations.run("quiz", "echo", rows(3), project="desk")
    (of_model,) = answer(yard, "usage", by=["model"])["items"]
    assert (of_model["model"], of_model["requests"], of_model["cost"]) == ("echo", 3, "0")
    assert answer(yard, "usage", by=["model"], after="1")["items"] == []
    assert refusal(yard, "usage", by=["colour"]).startswith("by")


def test_a_job_its_events_and_its_numbers_are_found_by_the_name_of_the_model(yard: Platform) -> None:
    examples: Any = [{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]}] * 6
    yard.models.create("support", project="desk", base_model="tabular-mini")
    yard.training.sft("desk/support", examples)
    yard.worker().run_until_idle()
    assert answer(yard, "job", job="desk/support")["job"]["status"] == "succeeded"
    assert answer(yard, "job_events", job="desk/support")["items"][0]["type"] == "training_ended"
    steps = answer(yard, "job_metrics", job="desk/support", points=2)["steps"]
    assert "loss" in json.dumps(steps)
    assert [one["kind"] for one in answer(yard, "jobs", kind="sft")["items"]] == ["sft"]
    assert answer(yard, "jobs", status="failed")["items"] == []


def test_a_page_of_the_docs_is_read_in_parts_to_its_end(yard: Platform) -> None:
    assert any(one.startswith("how-to/train: ") for one in answer(yard, "docs")["pages"])
    part, texts = answer(yard, "docs", topic="reference/http"), []
    while True:
        texts += part["text"]
        if part["next"] is None:
            break
        part = answer(yard, "docs", topic="reference/http", after=part["next"])
    from modelyard.parts.docs.pages import pages

    assert "".join(texts) == next(page.text for page in pages() if page.name == "reference/http")
    assert "no page of the docs is about" in refusal(yard, "docs", topic="zzxxqq")


# ---- bounds


def test_long_texts_are_cut_and_say_by_how_much(yard: Platform) -> None:
    yard.evaluations.run("quiz", "echo", [{"prompt": "x" * 5000, "expected": "y"}], project="desk")
    (row,) = answer(yard, "run_rows", run="quiz")["items"]
    assert row["row"]["prompt"] == "x" * 2000 + "… (cut, 3000 characters more)"


def test_items_that_do_not_fit_are_on_the_next_page(yard: Platform) -> None:
    yard.evaluations.run("quiz", "echo", rows(60, "w" * 900), project="desk")
    seen, after = [], None
    while True:
        page = answer(yard, "run_rows", run="quiz", limit=50, **({"after": after} if after else {}))
        assert len(page["items"]) < 50
        seen += [one["index"] for one in page["items"]]
        after = page["next"]
        if after is None:
            break
    assert seen == list(range(60))


@pytest.mark.parametrize(
    "value",
    [
        {"items": [{"id": "1", "row": {f"k{at}": "v" * 3000 for at in range(400)}}], "next": None},
        {"text": "a" * 10**6},
        {"summary": {str(at): {str(other): "x" * 50 for other in range(100)} for at in range(2000)}},
        {"items": [{"id": "1", "deep": [["é" * 3000] * 500] * 100}], "next": None},
    ],
)
def test_no_answer_is_longer_than_the_bound_and_each_is_json(value: Any) -> None:
    text = bounded(value)
    assert len(text) <= MOST
    assert "cut" in text or "more" in text
    json.loads(text)


def test_items_of_which_one_is_huge_are_all_on_some_page() -> None:
    items = [{"id": str(at), "row": {"text": "v" * 3000, "more": ["w" * 900] * 30}} for at in range(40)]
    seen: list[str] = []
    while len(seen) < len(items):
        page = json.loads(bounded({"items": items[len(seen) :], "next": None}))
        seen += [one["id"] for one in page["items"]]
        assert page["next"] == (seen[-1] if len(seen) < len(items) else None)
    assert seen == [one["id"] for one in items]


# ---- secrets and errors


def test_secrets_are_not_shown(yard: Platform) -> None:
    key = yard.keys.create("acme", prefix="tml-").secret
    shown = [yard.keys.create("acme").secret, key, "sk-" + "a" * 40, "hf_" + "b" * 30]
    texts = [f"it is {secret}, really" for secret in shown] + ["postgresql://me:hunter2@db/yard"]
    yard.evaluations.run("quiz", "echo", [{"prompt": text, "expected": "y"} for text in texts], project="desk")
    text, _ = answered(yard, ALL, "run_rows", {"run": "quiz"})
    assert not [secret for secret in [*shown, "hunter2"] if secret in text]
    assert text.count("it is [secret], really") == 2 * len(shown)
    said = refusal(yard, "job", job=shown[0])
    assert shown[0] not in said


def test_a_fault_of_a_tool_is_one_line_and_the_session_goes_on(
    yard: Platform, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(**_: Any) -> Any:
        raise ZeroDivisionError("a\nb")

    monkeypatch.setattr(type(yard.models), "list", lambda *_, **__: broken())
    assert refusal(yard, "models") == "models failed with ZeroDivisionError; the log of the server says where"
    assert "ZeroDivisionError" in caplog.text


def test_an_act_that_is_not_allowed_is_not_there(yard: Platform) -> None:
    assert refusal(yard, "train", READS, method="sft", model="m", data="d").startswith("there is no tool 'train'")


def test_a_run_is_steered(yard: Platform) -> None:
    run = yard.evaluations.submit("quiz", "echo", rows(3), "exact_match").id
    assert answer(yard, "steer", run=run, action="pause")["done"]
    found = answer(yard, "steer", run=run, action="limits", limits={"concurrency": 2})
    assert (found["changed"], found["done"]) == ({"concurrency": [8, 2]}, False)
    assert answer(yard, "steer", run=run, action="resume")["done"]
    yard.worker().run_until_idle()
    assert answer(yard, "steer", run=run, action="requeue", indices=[1])["run"] == run
    yard.worker().run_until_idle()
    assert yard.evaluations.runs.get(run).state == "completed"
    assert "is no limit" in refusal(yard, "steer", run=run, action="limits", limits={"shards": 2})
    assert "file" in refusal(yard, "steer", run=run, action="rows", rows="./nope.jsonl")


def test_acts_are_refused_as_in_python(yard: Platform) -> None:
    yard.models.create("support", project="desk", base_model="tabular-mini")
    assert "not found" in refusal(yard, "evaluate", evaluation="quiz", model="echo")
    assert "/nope.jsonl" in refusal(yard, "train", method="sft", model="desk/support", data="/nope.jsonl")
    assert "bogus" in refusal(yard, "train", method="sft", model="desk/support", data="x", options={"bogus": 1})
    assert "quiz" in refusal(yard, "promote", model="desk/support", step=0, evaluation="quiz")
    assert "base_model" in refusal(yard, "create_model", model="desk/other", base_model="nothing")


def test_a_rollout_is_started_where_that_is_allowed_and_looked_at(yard: Platform) -> None:
    for text in ("old", "new"):
        yard.variants.publish("desk/help", model="echo", template=f"{text}: {{question}}")
    yard.variants.promote("desk/help", 1)
    asked: Any = {"model": "variants/desk/help", "step": 2, "also": {"errors": 0.1}, "shadow": "1h"}
    assert refusal(yard, "roll_out", READS, **asked).startswith("there is no tool 'roll_out'")
    made = answer(yard, "roll_out", **asked)
    (listed,) = answer(yard, "rollouts")["items"]
    assert (listed["id"], made["state"]) == (made["rollout"], "shadow")
    assert "variants/desk/help@prod, version 1 to 2: shadow, 0% of the users have version 2." in listed["text"]
    assert "errors: surely 0 to 1, of at most 0.1" in listed["text"]
    assert "margin" in refusal(yard, "roll_out", **{**asked, "margin": 7.0})


def test_the_command_says_what_it_lacks_and_what_may_be_allowed(tmp_path: Any) -> None:
    said = CliRunner().invoke(main, ["mcp", "--store", str(tmp_path / "yard.db"), "--allow", "read,train"])
    assert said.exit_code == 2
    assert "there is no 'read' to allow; there are evaluate, train, promote" in said.output
    open_platform(tmp_path / "yard.db").close()
    said = CliRunner().invoke(main, ["mcp", "--store", str(tmp_path / "yard.db")])
    assert said.exit_code == 1
    assert said.output == "Error: mcp is not installed; run: pip install 'modelyard[mcp]'\n"
