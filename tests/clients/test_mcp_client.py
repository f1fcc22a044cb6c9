"""The package's own client, which starts `modelyard mcp` and speaks with it over stdin and stdout."""

import json
import runpy
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from modelyard import open_platform
from modelyard.testing import ManualClock

pytest.importorskip("mcp", reason="it has a lane of its own: tests/clients/lanes.py mcp")

import anyio
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

ROOT = Path(__file__).parents[2]
ROWS = [{"prompt": f"say {word}", "expected": word} for word in ("yes", "no")]
EXAMPLES = [{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]}] * 2
READING = {
    *("models", "checkpoints", "jobs", "job", "job_events", "job_metrics", "runs", "run", "run_rows", "compare_runs"),
    *("usage", "catalogue", "docs", "rollouts", "improvement"),
}
ACTING = {"evaluate", "steer", "create_model", "train", "improve", "promote", "roll_out", "roll_back"}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "yard.db"
    with open_platform(path) as platform:
        platform.evaluations.run("quiz", "echo", ROWS, project="desk")
    return path


def in_session(store: Path, *more: str, do: Callable[[Any], Awaitable[None]], mode: str = "auto") -> None:
    """Start the server in a process of its own, and do this with a client of it."""
    args = ["-m", "modelyard", "mcp", "--store", str(store), *more]
    environment = {"PYTHONPATH": ":".join(sys.path)}
    server = StdioServerParameters(command=sys.executable, args=args, env=environment)

    async def session() -> None:
        with anyio.fail_after(90):
            async with Client(stdio_client(server), mode=mode) as client:
                await do(client)

    anyio.run(session)


async def answer_of(client: Any, tool: str, **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments)
    (block,) = result.content
    assert not result.is_error, block.text
    return json.loads(block.text)


async def refusal_of(client: Any, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    (block,) = result.content
    text: str = block.text
    assert "\n" not in text
    return text


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_client_reads_and_has_no_tool_that_acts(store: Path, mode: str) -> None:
    async def do(client: Any) -> None:
        tools = (await client.list_tools()).tools
        assert {tool.name for tool in tools} == READING
        assert all(tool.annotations.read_only_hint for tool in tools)
        (run,) = (await answer_of(client, "runs"))["items"]
        assert (run["run"], run["state"]) == ("quiz@echo", "completed")
        rows = await answer_of(client, "run_rows", run="quiz", limit=1)
        assert rows["items"][0]["row"] == ROWS[0]
        rest = await answer_of(client, "run_rows", run="quiz", after=rows["next"])
        assert [one["row"] for one in rest["items"]] == ROWS[1:]
        assert await refusal_of(client, "job", job="nothing") == "Job 'nothing' not found"
        assert await refusal_of(client, "models", limit=0) == "limit: must be at least 1"
        assert "there is no tool 'train'" in await refusal_of(client, "train", method="sft", model="m", data="d")

    in_session(store, do=do, mode=mode)


def test_a_client_trains_evaluates_and_promotes_where_that_is_allowed(store: Path, tmp_path: Path) -> None:
    data = tmp_path / "examples.jsonl"
    data.write_text("\n".join(map(json.dumps, EXAMPLES)))
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(map(json.dumps, ROWS)))

    async def ended(client: Any, job: str) -> Any:
        while True:
            found = (await answer_of(client, "job", job=job))["job"]
            if found["status"] not in ("queued", "running"):
                return found
            await anyio.sleep(0.05)

    async def do(client: Any) -> None:
        assert {tool.name for tool in (await client.list_tools()).tools} == READING | ACTING
        await answer_of(client, "create_model", model="desk/support", base_model="tabular-mini")
        made = await answer_of(client, "train", method="sft", model="desk/support", data=str(data))
        assert (await ended(client, made["job"]))["status"] == "succeeded"
        asked = {"evaluation": "polite", "model": "local/desk/support", "rows": str(rows), "project": "desk"}
        run = await answer_of(client, "evaluate", **asked)
        assert (await ended(client, run["run"]))["status"] == "succeeded"
        moved = await answer_of(client, "promote", model="desk/support", step=1, evaluation="polite")
        assert (moved["alias"], moved["step"]) == ("prod", 1)
        refused = await refusal_of(client, "promote", model="desk/support", step=0, evaluation="polite")
        assert "polite" in refused
        points = await answer_of(client, "checkpoints", model="desk/support")
        assert [(one["step"], one["aliases"]) for one in points["items"]] == [(1, ["prod"]), (0, [])]

    in_session(store, "--allow", "evaluate,train,promote", do=do)
    with open_platform(store, clock=ManualClock()) as platform:
        (promotion,) = platform.models.promotions("desk/support")
        assert promotion.by != ""


def test_the_page_about_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = runpy.run_path(str(ROOT / "tests" / "docs" / "test_docs.py"))
    page = ROOT / "docs" / "how-to" / "let-a-coding-agent-use-it.md"
    docs["run_page"](page, tmp_path, monkeypatch)
    assert (tmp_path / "AGENTS.md").read_text().count("\n") == 10
    shown = [json.loads(code) for language, _, code, _ in docs["blocks"](page) if language == "json"]
    assert [one["mcpServers"]["modelyard"]["args"][0] for one in shown] == ["mcp", "mcp"]
