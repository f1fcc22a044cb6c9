"""With `--json` every command prints JSON alone on standard output, and its error is a JSON object."""

import ast
import inspect
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from modelyard import Platform, open_platform
from modelyard.cli import main
from modelyard.cli.answers import with_json
from modelyard.parts.quickstart import story

ROWS = [
    {"messages": [{"role": "user", "content": f"ping {at}"}, {"role": "assistant", "content": "pong"}]}
    for at in range(4)
]
JOB = {"id": "ftjob-1", "training_file": "file-a", "method": {"type": "supervised", "supervised": {}}, "model": "m"}

RUN = """
quickstart quick
docs train
docs helm
keys create --entity local
keys list
keys revoke one
budget set local 5
budget list
budget remove local
ask echo hi
catalogue
base-models list
models
models list
models show p/m
checkpoints p/m
promote p/m 1
promote p/m 2
rollback p/m
aliases p/m
train sft p/m data.jsonl
train dpo p/m pairs.jsonl
train distill p/m taught.jsonl
train rl p/m rewards.jsonl
train sweep p/m data.jsonl -o learning_rate=1e-4,1e-5 --validation data.jsonl
train import jobs.json --files . --base-model tabular-mini
sweeps list
sweeps show {sweep}
datasets split data.jsonl --held-out 0.5 --name rows --project p
datasets list
datasets rows p/rows-train
collect asked --project p
evaluate quiz echo --rows rows.jsonl --scorer exact_match
runs list
runs show quiz
runs compare quiz quiz
compare quiz@echo quiz@tabular-mini
runs report quiz report.html
runs write-log quiz quiz.json
runs import quiz.json
runs export quiz
annotate {run} --tag good
runs requeue {run} --row 0
runs pause {run}
runs limits {run} -o concurrency=2
runs resume {run}
runs add-rows {run} rows.jsonl
runs steering {run}
jobs watch {run}
webhooks add https://hooks.example/x --entity local
webhooks list
webhooks rotate {webhook}
webhooks test {webhook}
webhooks alert local
webhooks dead
webhooks redeliver {message}
webhooks remove {webhook}
jobs list
jobs show {job}
jobs logs {job}
jobs watch {job}
train sft p/m data.jsonl --no-wait
jobs pause {waiting}
jobs resume {waiting}
jobs cancel {waiting}
jobs retry {waiting}
episodes list
episodes show {group}
episodes replay {episode}
variants list
variants show p/v
variants import v.toml
variants export p/v
variants diff p/v@1 p/v@2
variants promote p/v 1
variants promote p/v 2
variants rollback p/v
variants unalias p/v prod
train prompt p/v rows.jsonl --reflection echo --reward exact_match -o calls=20
improve start p/v rows.jsonl --reward exact_match --road {{"road":"prompt","reflection":"echo","calls":20}}
improve list
improve show {improvement}
variants delete p/v
review start quiz
review list
review label {review} ann
review export {review} ann
review import {review} ann labels.csv
review disagreements {review} --person ann
review estimate quiz
review compare quiz quiz
review promote p/m 2 --not-worse quiz
review delete {review}
watches start echo {{"type":"llm_judge","model":"echo","prompt":"{{output}}"}}
watches list
watches show {watch}
watches stop {watch}
watches delete {watch}
routers set echo --rule {{"from_prompt_tokens":9,"prompt":"0.5"}}
routers show echo
routers remove echo
what-if ask echo --since 1d --budget 1
what-if list
what-if show {what_if}
what-if cancel {what_if}
what-if delete {what_if}
rollouts start p/m 2
rollouts list
rollouts show {rollout}
rollouts score {request} 1
rollouts stop {rollout}
rollouts delete {rollout}
shares set local --weight 2
shares list
migrate
copy yard.db copied.db
usage
doctor
backup kept.db
restore kept.db back.db
sweep --grace 0
keep events 30
delete-entity other --yes
"""
UNTIL_STOPPED = ("serve --port 0", "ui --port 0", "work")
NOT_RUN = {
    "mcp": "speaks JSON until the client ends it",
    "base-models add": "needs the extra torch",
    "models export": "needs the extra torch",
    "models import": "needs the extra torch",
    "models push": "needs a hub",
}
"""Commands that are looked at only, and why."""
STREAMS = {"datasets rows", "jobs logs", "jobs watch", "runs export"}
"""Commands that print a JSON document on each line, as it comes."""
REFUSED = {
    "train distill",
    "webhooks test",
    "webhooks redeliver",
    "jobs retry",
    "rollouts score",
    "sweep",
    "review disagreements",
    "review promote",
}
"""Commands that this store makes fail: their error is looked at."""
REMEMBERED = {
    "train sft p/m data.jsonl --no-wait": ("waiting", "job"),
    "train sft p/m data.jsonl": ("job", "job"),
    "webhooks add https://hooks.example/x --entity local": ("webhook", "id"),
    "review start quiz": ("review", "id"),
    "rollouts start p/m 2": ("rollout", "id"),
    'watches start echo {{"type":"llm_judge","model":"echo","prompt":"{{output}}"}}': ("watch", "id"),
    "what-if ask echo --since 1d --budget 1": ("what_if", "id"),
    'improve start p/v rows.jsonl --reward exact_match --road {{"road":"prompt","reflection":"echo","calls":20}}': (
        "improvement",
        "improvement",
    ),
    "train sweep p/m data.jsonl -o learning_rate=1e-4,1e-5 --validation data.jsonl": ("sweep", "sweep"),
}
"""What later lines name, and the member of the answer that it is."""


def commands(group: click.Group, *path: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if not isinstance(command, click.Group):
            yield " ".join((*path, name)), command
        else:
            yield from commands(command, *path, name)


def written(folder: Path, name: str, *rows: Any) -> None:
    (folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A folder with a store and with files, and what the lines name."""
    monkeypatch.chdir(tmp_path)
    ask, choice = ROWS[0]["messages"][0], {"finish_reason": "stop", "index": 0, "message": ROWS[0]["messages"][1]}
    tokens = {"content": [{"token": "pong", "logprob": -0.5, "bytes": None, "top_logprobs": []}]}
    said = [{"messages_and_choices": [ask, {**choice, "logprobs": tokens}], "reward": reward} for reward in (0.0, 1.0)]
    written(tmp_path, "data.jsonl", *ROWS)
    written(tmp_path, "file-a.jsonl", *ROWS)
    written(tmp_path, "pairs.jsonl", {"messages": [ask], "chosen": "pong", "rejected": "no"})
    written(tmp_path, "rewards.jsonl", {"trajectories": said})
    written(tmp_path, "taught.jsonl", said[0])
    written(tmp_path, "rows.jsonl", *({"prompt": f"say {at}", "expected": f"say {at}"} for at in range(20)))
    written(tmp_path, "jobs.json", JOB)
    (tmp_path / "labels.csv").write_text("row,label\n" + "".join(f"{at},yes\n" for at in range(20)))
    (tmp_path / "v.toml").write_text('name = "p/v"\nmodel = "echo"\nsystem = "Be brief."\n')
    with open_platform("yard.db") as platform:
        return filled(platform)


def filled(platform: Platform) -> dict[str, str]:
    platform.models.create("m", project="p", base_model="tabular-mini")
    for _ in range(2):
        platform.training.sft("p/m", ROWS).wait()
    platform.keys.create("local", name="one")
    for system in ("Be kind.", "Be short."):
        platform.variants.publish("p/v", model="echo", system=system)
    rows = [{"prompt": f"say {at}", "expected": f"say {at}"} for at in range(20)]
    run, _ = (platform.evaluations.run("quiz", model, rows, "exact_match").run for model in ("tabular-mini", "echo"))
    request = platform.chat.complete(model="echo", messages="hi", project="p", store=True).id
    group = platform.episodes.group("refunds", model="p/m", size=1)
    platform.acting_as(platform.keys.authenticate(group[0].key)).chat.complete(model="m", messages="hi", max_tokens=2)
    return {"run": run.id, "request": request, "group": group.id, "episode": group[0].id, "message": "none"}


def call(line: str) -> Result:
    words = line.split()
    return CliRunner().invoke(main, [*words, "--json"], input="yes\nq\n" if line.startswith("review label") else None)


def parsed(text: str) -> Any:
    def refused(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refused)


def wrong(line: str, path: str, ended: Result) -> str:
    """What is wrong with the output of a command, "" for nothing."""
    if isinstance(ended.exception, Exception):
        return f"{line} raised {ended.exception!r}"
    if ended.exit_code:
        error = parsed(ended.stderr.splitlines()[-1])["error"]
        return "" if path in REFUSED and error["status"] == ended.exit_code else f"{line}: {error}"
    lines = [parsed(one) for one in ended.stdout.splitlines()]
    return "" if len(lines) == 1 or (path in STREAMS and lines) else f"{line} prints {ended.stdout[:300]!r}"


def test_every_command_prints_json_alone(names: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(story, "run", lambda folder: click.echo("It takes a while.") or f"of/{folder}")
    known, seen, found = dict(commands(main)), set[str](), list[str]()
    for line in RUN.strip().splitlines():
        path = next((one for one in sorted(known, key=len, reverse=True) if f"{line} ".startswith(f"{one} ")), line)
        seen.add(path)
        ended = call(line.format_map(names))
        found += filter(None, [wrong(line, path, ended)])
        if line in REMEMBERED:
            name, member = REMEMBERED[line]
            names[name] = parsed(ended.stdout)[member]
    assert found == []
    assert seen - {"models"} | NOT_RUN.keys() | {one.split()[0] for one in UNTIL_STOPPED} == known.keys()


@pytest.mark.parametrize("line", UNTIL_STOPPED)
def test_what_runs_until_it_is_stopped_says_first_what_it_is(line: str, names: dict[str, str]) -> None:
    words = [sys.executable, "-m", "modelyard.cli", *line.split(), "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = parsed(process.stdout.readline())
        os.kill(process.pid, signal.SIGTERM)
        assert process.stdout.read() == ""
    assert first.keys() == ({"worker"} if line == "work" else {"url", "store"})


def test_every_command_takes_it_and_has_something_to_say() -> None:
    for path, command in commands(main):
        assert "as_json" in {one.name for one in command.params}, path
        callback: Any = command.callback
        if not hasattr(callback, "func"):  # an option of its own
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(callback.args[0]))))
        said = {type(one) for one in ast.walk(tree) if isinstance(one, ast.Return) and one.value is not None}
        told = {one.func.id for one in ast.walk(tree) if isinstance(one, ast.Call) and isinstance(one.func, ast.Name)}
        assert said or "tell" in told, f"{path} returns nothing"


@pytest.mark.parametrize("words", [["models", "show", "no/such"], ["jobs", "list", "--status", "odd"], ["nosuch"]])
def test_an_error_is_an_object_on_the_last_line(words: list[str], names: dict[str, str]) -> None:
    plain, ended = CliRunner().invoke(main, words), CliRunner().invoke(main, [*words, "--json"])
    error = parsed(ended.stderr.splitlines()[-1])["error"]
    assert ended.stdout == ""
    assert error["status"] == ended.exit_code == plain.exit_code != 0
    assert plain.stderr.splitlines()[-1] == f"Error: {error['message']}"
    assert error.get("code") == ("not_found" if words[0] == "models" else None)


def test_an_error_amidst_a_question_has_a_line_of_its_own(names: dict[str, str]) -> None:
    ended = call("delete-entity other")
    assert parsed(ended.stderr.splitlines()[-1])["error"]["message"] == "it was interrupted"
    assert (ended.exit_code, ended.stdout) == (1, "")


def test_the_table_of_runs_and_its_json_say_the_same(names: dict[str, str]) -> None:
    call("runs write-log quiz quiz.json")
    call("runs import quiz.json")
    newest = parsed(call("runs list").stdout)[0]
    assert newest["imported"] == "a log of Inspect"
    assert "imported from a log of Inspect" in CliRunner().invoke(main, ["runs", "list"]).stdout


def test_a_command_without_an_answer_of_its_own_prints_to_standard_error() -> None:
    @click.command()
    def greet() -> object:
        click.echo("hello")
        return {"said": "hello"}

    with_json(greet)
    plain, ended = CliRunner().invoke(greet, []), CliRunner().invoke(greet, ["--json"])
    assert (plain.stdout, plain.stderr) == ("hello\n", "")
    assert (parsed(ended.stdout), ended.stderr) == ({"said": "hello"}, "hello\n")
