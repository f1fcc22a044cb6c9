"""The commands for models, runs, budgets and upkeep, with names in the place of ids."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from each import check_each
from modelyard import Example, Message, Role, open_platform
from modelyard.cli import SECTIONS, main
from modelyard.cli.lazy_group import LazyGroup

pytestmark = pytest.mark.parts

FACTORY = """
import modelyard
def platform():
    return modelyard.open_platform(backend=modelyard.ScriptedBackend(["made by the factory"]))
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the model support/bot, two runs of quiz, and a key called desk."""
    path = tmp_path_factory.mktemp("yard") / "yard.db"
    with open_platform(path) as platform:
        model = platform.models.create("bot", project="support", base_model="tabular-mini")
        rows = [Example((Message(Role.USER, "ping"), Message(Role.ASSISTANT, "pong")))] * 4
        platform.training.sft(model.id, rows).wait()
        platform.models.promote(model, 1)
        questions = [{"prompt": f"say {n}", "expected": f"say {n}"} for n in range(12)]
        platform.evaluations.run_each("quiz", ["echo", "tabular-mini"], questions, max_tokens=4)
        platform.keys.create("acme", name="desk")
    return path


@pytest.fixture
def here(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with that store, which commands find without being told."""
    monkeypatch.chdir(trained.parent)
    return trained.parent


def call(*words: object, status: int = 0, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(main, [str(word) for word in words], input=stdin)
    assert result.exit_code == status, (result.output, result.exception)
    return result


def rows(*words: object) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(call(*words, "--json").stdout)
    return found


def test_a_model_is_asked_with_words_or_from_standard_input_and_no_file_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("ask", "echo", "hello", "there").stdout == "hello there\n"
    assert call("ask", "echo", stdin="piped\n").stdout == "piped\n"
    assert json.loads(call("ask", "echo", "hi", "--json").stdout)["choices"][0]["message"]["content"] == "hi"
    assert "not found" in call("ask", "nothing", "hi", status=1).output
    assert list(tmp_path.iterdir()) == []


def test_an_answer_cannot_control_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("ask", "echo", "a\x1b[2Jb\nc").stdout == "a?[2Jb\nc\n"


@pytest.mark.parts
def test_a_factory_takes_the_place_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "yard_of_ours.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert call("ask", "--factory", "yard_of_ours:platform", "scripted", "hi").stdout == "made by the factory\n"
    assert [entry["id"] for entry in rows("catalogue", "--factory", "yard_of_ours:platform")] == ["scripted"]


def test_models_checkpoints_and_aliases_are_named(here: Path) -> None:
    shown = json.loads(call("models", "show", "support/bot", "--json").stdout)
    assert (shown["name"], shown["aliases"], shown["last_step"]) == ("bot", {"prod": 1}, 1)
    steps = rows("checkpoints", "support/bot")
    assert [(one["step"], one["aliases"]) for one in steps] == [(0, ""), (1, "prod")]
    assert "loss" in steps[1]["metrics"]  # type: ignore[operator]
    assert [(one["name"], one["step"]) for one in rows("aliases", "support/bot")] == [("prod", 1)]
    assert rows("models") == rows("models", "list")
    assert {"echo", "tabular-mini"} <= {entry["id"] for entry in rows("catalogue")}


def test_jobs_are_filtered_and_show_names(here: Path) -> None:
    assert [job["kind"] for job in rows("jobs", "list", "--last", 2)] == ["evaluate", "evaluate"]
    assert rows("jobs", "list", "--status", "succeeded")[-1]["kind"] == "sft"
    assert rows("jobs", "list", "--status", "queued") == []
    assert [job["kind"] for job in rows("jobs", "list", "--kind", "sft")] == ["sft"]
    assert rows("jobs", "list", "--kind", "rl") == []
    table = call("jobs", "list").stdout
    assert "support/bot" in table
    assert "quiz@echo" in table


def test_runs_are_listed_shown_compared_reported_and_exported_by_name(here: Path, tmp_path: Path) -> None:
    newest, oldest = rows("runs", "list")
    assert ("tabular-mini" in str(newest["model"]), "echo" in str(oldest["model"])) == (True, True)
    assert str(oldest["run"]) in call("runs", "show", "quiz@echo").stdout
    assert json.loads(call("runs", "show", str(oldest["run"])[-8:], "--json").stdout)["id"] == oldest["run"]
    assert json.loads(call("runs", "show", "quiz", "--json").stdout)["id"] == newest["run"]
    assert "exact_match" in call("runs", "compare", "quiz@echo", "quiz@tabular-mini").stdout
    worse = call("runs", "compare", "quiz@echo", "quiz@tabular-mini", "--not-worse", status=1)
    assert "worse" in worse.output
    words = ("runs", "compare", "quiz@echo", "quiz@tabular-mini", "--cluster-by")
    assert "with rows of one 'prompt' taken together" in call(*words, "prompt").stdout
    assert "has no input 'promt'" in call(*words, "promt", status=1).output
    call("runs", "compare", "quiz@tabular-mini", "quiz@echo", "--not-worse", "--save", tmp_path / "both.csv")
    call("runs", "report", "quiz", tmp_path / "report.jsonl")
    assert {file.name for file in tmp_path.iterdir()} == {"both.csv", "report.jsonl"}
    assert len(call("runs", "export", "quiz").stdout.splitlines()) == 12
    assert "there is no run nothing" in call("runs", "show", "nothing", status=1).output


def test_answers_without_a_score_are_told(here: Path, tmp_path: Path) -> None:
    file = tmp_path / "other.jsonl"
    file.write_text('{"prompt": "a", "answer": "b"}\n{"prompt": "c", "expected": "c"}\n')
    words = ("evaluate", "other", "echo", "--scorer", "exact_match", "--rows", file)
    told = call(*words).stderr
    assert "echo: 1 of 2 answers have no score; modelyard runs show …" in told
    named = told.split("runs show ")[1].split()[0]
    assert "row.expected: is missing" in call("runs", "show", named).stdout
    assert len(json.loads(call(*words, "--json").stdout)) == 1
    file.write_text('{"prompt": "c", "expected": "c"}\n')
    assert "no score" not in call(*words).stderr


def test_a_scorer_with_fields_is_given_as_json(here: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("question,answer\nyes,yes\n")
    words = ("evaluate", "asked", "echo", "--rows", file, "--prompt", "{question}", "--scorer")
    judge = {"type": "llm_judge", "model": "echo", "prompt": "{output}"}
    for scorer in (judge, {"type": "exact_match", "expected": "answer"}):
        (run,) = rows(*words, json.dumps(scorer))
        assert (run["scorer"], run["score"]) == (scorer["type"], 1)
    lacking = call(*words, "llm_judge", status=2).output
    assert "model: is required" in lacking
    assert """with fields it is JSON: '{"type": "llm_judge", ...}'""" in lacking
    assert "with fields it is JSON" in call(*words, '{"type": "llm_judge"', status=2).output
    unknown = call(*words, json.dumps({"type": "exact_match", "expected": "anser"}), status=1).output
    assert "did you mean 'answer'?" in unknown
    unasked = call("evaluate", "asked", "echo", "--rows", file, "--scorer", "numeric", status=1).output
    assert '--prompt "{question}"' in unasked


def test_a_model_is_evaluated_and_refused_if_it_is_worse(here: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f'{{"prompt": "say {n}", "expected": "say {n}"}}\n' for n in range(12)))
    words = ("--rows", file, "--not-worse-than", "quiz@echo")
    (good,) = rows("evaluate", "quiz", "echo", *words, "--save", tmp_path / "run.csv")
    (again,) = rows("evaluate", "quiz", "echo", *words, "--shards", 2)
    assert {job["subject"] for job in rows("jobs", "list", "--last", 2)} == {again["run"]}
    assert good["score"] == 1
    assert (tmp_path / "run.csv").read_text().startswith("row_digest,")
    assert "worse" in call("evaluate", "quiz", "tabular-mini", *words, status=1).output


def test_a_run_is_filed_where_its_checkpoint_is_promoted_and_repeats_with_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f'{{"prompt": "say {n}", "expected": "say {n}"}}\n' for n in range(6)))
    with open_platform(tmp_path / "yard.db") as platform:
        model = platform.models.create("bot", project="shop", base_model="tabular-mini")
        platform.training.sft(model, [{"prompt": "say 1", "completion": "say 1"}]).result()
    options = ("-o", "temperature=0", "-o", "seed=1", "-o", "max_tokens=3")
    evaluate = ("evaluate", "quizz", "--rows", file, *options)
    refused = call("promote", "shop/bot", 0, "--not-worse", "quizz", status=1).output
    assert "no completed run of 'quizz' on step 0 of shop/bot; evaluate it first" in refused
    each = [rows(*evaluate, "shop/bot:step0")[0] for _ in range(2)]
    assert {run["project"] for run in each} == {"shop"}
    lines = [call("runs", "export", run["run"]).stdout.splitlines() for run in each]
    (outputs,) = {tuple(json.loads(line)["output"] for line in of_run) for of_run in lines}
    assert len(outputs) == 6
    near = call("promote", "shop/bot", 0, "--not-worse", "quizzz", status=1).output
    assert "did you mean 'quizz'" in near
    assert "weave:" not in near
    first = call("promote", "shop/bot", 0, "--not-worse", "quizz").stdout
    assert first == "prod points to step 0: there was nothing to compare with\n"
    again = call("promote", "shop/bot", 1, "--not-worse", "quizz", status=1).output
    assert "no completed run of 'quizz' on step 1 of shop/bot" in again
    call(*evaluate, "shop/bot:step1")
    moved = call("promote", "shop/bot", 1, "--not-worse", "quizz").stdout
    assert moved == "prod points to step 1, before to step 0: not worse\n"
    for name in ("shop/bot:step0", "shop/bot", "local/shop/bot:step1", "bot"):
        assert "quizz" in call("runs", "show", f"quizz@{name}").stdout
    assert "no run quizz@shup/bot" in call("runs", "show", "quizz@shup/bot", status=1).output
    assert "did you mean 'quizz@bot:step1'" in call("runs", "show", "quiz@bot:step1", status=1).output
    assert "temprature" in call(*evaluate, "echo", "-o", "temprature=0", status=2).output
    assert "seed" in call(*evaluate[:4], "echo", "-o", "seed=x", status=1).output
    assert {run["project"] for run in rows(*evaluate, "shop/bot:step0", "echo")} == {"default"}


def test_a_model_is_made_and_trained_by_each_method(tmp_path: Path) -> None:
    store, ping = tmp_path / "yard.db", {"role": "user", "content": "ping"}
    choice = {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "pong"}}
    tokens = {"content": [{"token": "pong", "logprob": -0.5, "bytes": None, "top_logprobs": []}]}
    attempts = [
        {"messages_and_choices": [ping, {**choice, "logprobs": tokens}], "reward": reward} for reward in (0.0, 1.0)
    ]
    data = {
        "sft": {"messages": [ping, {"role": "assistant", "content": "pong"}]},
        "dpo": {"messages": [ping], "chosen": "pong", "rejected": "no"},
        "rl": {"trajectories": attempts},
    }
    for step, (method, row) in enumerate(data.items(), 1):
        file = tmp_path / f"{method}.jsonl"
        file.write_text(json.dumps(row) + "\n")
        words = ("--base-model", "tabular-mini", "-o", "learning_rate=0.0001", "--store", store)
        assert f"games/bot is at step {step}" in call("train", method, "games/bot", file, *words).stdout
    marked = tmp_path / "marked.jsonl"
    marked.write_bytes(b"\xef\xbb\xbf" + (tmp_path / "rl.jsonl").read_bytes())
    (tmp_path / "broken.jsonl").write_text("{oops\n")
    for file, said in (
        (marked, "line.1: must not begin with a byte order mark"),
        ("broken.jsonl", "line.1: is not valid JSON"),
    ):
        shown = call("train", "rl", "games/bot", tmp_path / file, "--store", store, status=1)
        assert said in shown.output
    waits = call("train", "sft", "games/bot", tmp_path / "sft.jsonl", "--store", store, "--no-wait").stdout.strip()
    assert [job["id"] for job in rows("jobs", "list", "--store", store, "--status", "queued")] == [waits]
    wrong = call("train", "sft", "games/bot", tmp_path / "sft.jsonl", "--store", store, "-o", "rate=1", status=2)
    assert "has no option 'rate'" in wrong.output


def test_a_key_of_the_host_is_made_and_any_key_revoked_by_name(tmp_path: Path) -> None:
    store = tmp_path / "yard.db"
    for name in ("ops", "twin", "twin"):
        call("keys", "create", "--store", store, "--entity", "acme", "--name", name, *["--host"] * (name == "ops"))
    assert [key["host"] for key in rows("keys", "list", "--store", store)] == [True, False, False]
    assert "2 keys have" in call("keys", "revoke", "--store", store, "twin", status=1).output
    assert "of acme" in call("keys", "revoke", "--store", store, "ops").stdout
    assert rows("keys", "list", "--store", store)[0]["revoked"] is not None


def test_the_doctor_reports_each_part_and_fails_where_jobs_wait_for_no_worker(here: Path, tmp_path: Path) -> None:
    told = call("doctor").stdout
    assert "no worker is alive, and no job waits" in told
    assert "fails" not in told
    assert json.loads(call("doctor", "--json").stdout)["store"]["success"]
    store = tmp_path / "yard.db"
    with open_platform(store) as platform:
        model = platform.models.create("bot", base_model="tabular-mini")
        platform.training.sft(model, [Example((Message(Role.USER, "a"), Message(Role.ASSISTANT, "b")))])
    assert "fails" in call("doctor", "--store", store, status=1).stdout


def test_the_doctor_says_what_queued_jobs_wait_for(tmp_path: Path) -> None:
    store, example = tmp_path / "yard.db", [Example((Message(Role.USER, "a"), Message(Role.ASSISTANT, "b")))]
    with open_platform(store) as platform:
        for name in ("one", "two"):
            model = platform.models.create(name, base_model="tabular-mini")
            platform.training.sft(model, example, needs={"accelerators": 2})
        with platform.worker():
            found = json.loads(call("doctor", "--store", store, "--json").stdout)["queue_waits_for"]
            told = call("doctor", "--store", store).stdout
    reason = "a worker that can run sft of 'tabular-mini' with 2 accelerators: none that is alive has what it needs"
    assert found == [{"jobs": 2, "waiting_for": reason}]
    assert reason in told


def test_a_priority_is_given_and_shown(tmp_path: Path) -> None:
    store, data = tmp_path / "yard.db", tmp_path / "data.jsonl"
    data.write_text('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n')
    words = "--base-model", "tabular-mini", "--store", store, "--no-wait"
    job = call("train", "sft", "desk/bot", data, "--priority", "7", *words).stdout.strip()
    other = call("train", "sft", "desk/other", data, *words).stdout.strip()
    assert json.loads(call("jobs", "show", job, "--store", store, "--json").stdout)["priority"] == 7
    listed = json.loads(call("jobs", "list", "--store", store, "--json").stdout)
    assert {one["id"]: one["priority"] for one in listed} == {job: 7, other: 0}
    call("train", "sft", "desk/bot", data, "--priority", "1001", *words, status=1)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "expected": "a"}\n' * 4)
    call("evaluate", "quiz", "echo", "--rows", rows, "--shards", 2, "--priority", "3", "--store", store)
    alone = call("evaluate", "quiz", "echo", "--rows", rows, "--priority", "3", "--store", store, status=1)
    assert "give shards" in alone.stderr
    evaluations = json.loads(call("jobs", "list", "--store", store, "--json").stdout)[:2]
    assert [one["priority"] for one in evaluations] == [3, 3]


def _pair_options(
    command: click.Command, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Option]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _pair_options(found, (*words, name))
    for option in command.params:
        if isinstance(option, click.Option) and "=" in str(option.metavar):
            yield words, option


def test_an_option_that_names_something_takes_each_name_once() -> None:
    options = [*_pair_options(main)]
    assert options
    for words, option in options:
        name, value = str(option.metavar).split("=")
        pair = f"{name.lower()}={value if value.isalpha() and value != 'N' else 1}"
        kept = option.type.convert(pair, option, None)
        context = click.Context(click.Command("any"))
        assert option.multiple, words
        assert option.callback is not None, words
        with pytest.raises(click.BadParameter, match="more than one value"):
            option.callback(context, option, (kept, kept))
        assert option.callback(context, option, (kept,)) == (kept,)


@pytest.mark.parametrize("named", ["rows=1", "models=echo", "evaluation=this", "trials=2", "progress=true"])
def test_what_an_evaluation_is_given_as_it_is_and_by_an_option_is_refused(here: Path, named: str) -> None:
    rows = here / "asked.jsonl"
    rows.write_text('{"input": "a", "expected": "a"}\n')
    asked = ("evaluate", "said", "echo", "--rows", rows, "--scorer", "exact_match", "--trials", 1)
    found = call(*asked, "-o", named, status=2).output
    assert f"{named.split('=')[0]} is given twice" in found


@pytest.mark.parts
def test_old_events_are_let_go(here: Path) -> None:
    kept = call("keep", "events", 90, "--export", here / "events.jsonl", "--json")
    assert json.loads(kept.stdout) == {"events": 0, "jobs": 0}
    assert (here / "events.jsonl").read_text() == ""


def test_a_sweep_reports_what_went(here: Path) -> None:
    assert json.loads(call("sweep", "--grace", 0, "--json").stdout) == {"removed": 0, "missing": [], "unfinished": 0}


def test_every_command_s_line_of_help_is_that_of_the_command() -> None:
    context = main.make_context("modelyard", ["keys"], resilient_parsing=True)
    for name in (name for section in SECTIONS.values() for name in section):
        command = main.get_command(context, name)
        assert command is not None
        assert command.name == name


def test_help_and_completion_load_no_command() -> None:
    code = (
        "import sys\n"
        "from modelyard.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "print([name for name in sys.modules if name.startswith(('modelyard.cli.', 'modelyard.platform'))])"
    )
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['modelyard.cli.lazy_group']"
    found = LazyGroup.shell_complete(main, main.make_context("modelyard", [], resilient_parsing=True), "che")
    assert [item.value for item in found] == ["checkpoints"]


@pytest.mark.parts
def test_what_is_tagged_is_listed_by_its_tag_and_shows_its_note(here: Path) -> None:
    assert json.loads(call("annotate", "support/bot", "--tag", "demo", "--note", "small", "--json").stdout) | {
        "subject": ""
    } == {"subject": "", "kind": "model", "tags": ["demo"], "note": "small"}
    job = rows("jobs", "list")[-1]["id"]
    assert "tags     nightly, sweep\n" in call("annotate", job, "--tag", "sweep", "--tag", "nightly").stdout
    call("annotate", "quiz@echo", "--tag", "nightly")
    assert {one["kind"] for one in rows("jobs", "list", "--tag", "nightly")} == {"sft", "evaluate"}
    (run,) = rows("runs", "list", "--tag", "nightly")
    assert "echo" in str(run["model"])
    assert json.loads(call("jobs", "show", job, "--json").stdout)["tags"] == ["nightly", "sweep"]
    call("annotate", job, "--untag", "sweep")
    assert "tags" in call("jobs", "show", job).stdout
    assert "Model 'support/none' not found" in call("annotate", "support/none", status=1).output


def test_a_watched_loop_shows_its_rounds_and_why_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tasks = [{"prompt": "a question", "expected": "the answer"}]
    with open_platform(tmp_path / "yard.db") as platform:
        platform.models.create("m", project="p", base_model="tabular-mini")
        options: dict[str, Any] = {"rounds": 2, "samples": 2, "max_tokens": 4, "stop_when": {"patience": 1}}
        job = platform.training.loop("p/m", tasks, "exact_match", held_out=tasks, **options)
    reason = "patience (1): no later validation was above 0, of step 0"
    watched = call("jobs", "watch", job.id).stdout
    assert re.search(rf"stopped by +{re.escape(reason)}\n", watched)
    shown = call("jobs", "show", job.id).stdout
    assert re.search(rf"stop_reason +{re.escape(reason)}\n", shown)
    assert re.search(r"metrics.start_held_out +0.0\n", shown)


def test_a_watched_job_ends_with_its_last_numbers(here: Path) -> None:
    trained = call("jobs", "watch", "support/bot").stdout
    assert re.search(r"succeeded\ntook +0:00:\d.*\ncheckpoint +step1\n", trained)
    assert re.search(r"^loss +\d", trained, re.MULTILINE)
    (run, *_) = rows("runs", "list")
    assert re.search(r"^mean +\d", call("jobs", "watch", run["run"]).stdout, re.MULTILINE)


@pytest.mark.parts
@pytest.mark.parametrize("shape", ["one", "list", "page", "lines"])
def test_jobs_of_another_service_are_repeated(shape: str, tmp_path: Path) -> None:
    record = {
        "id": "ftjob-1",
        "training_file": "file-a",
        "validation_file": "file-b",
        "fine_tuned_model": "ft:gpt-4o-mini:acme:greeter:7p4",
        "method": {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2}}},
        "seed": 3,
    }
    forms: dict[str, Any] = {"one": record, "list": [record], "page": {"object": "list", "data": [record]}}
    both = "\n".join([json.dumps(record), "", json.dumps({**record, "id": "ftjob-2", "validation_file": None})])
    (tmp_path / "jobs").write_text(both if shape == "lines" else json.dumps(forms[shape]))
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    words = ("train", "import", tmp_path / "jobs", "--files", tmp_path, "--base-model", "tabular-mini")
    words = (*words, "--store", tmp_path / "new.db", "--project", "moved")
    (tmp_path / "file-a.jsonl").write_text(json.dumps(row))
    assert "file-b" in call(*words, status=1).stderr
    (tmp_path / "file-b").write_text(json.dumps(row))
    lines = [line.split() for line in call(*words).stdout.splitlines()]
    assert [line[0] for line in lines] == (["ftjob-1", "ftjob-2"] if shape == "lines" else ["ftjob-1"])
    assert "/moved/ft-tabular-mini-greeter-" in lines[0][2]
    (tmp_path / "file-a.jsonl").write_text("{}")
    assert "ftjob-1: training_file.row.0" in call(*words, status=1).stderr


@pytest.mark.parts
@pytest.mark.parametrize("text", ["", "[]", "5", '{"id": "x"}', "not json", '{"training_file": "../x"}'])
def test_what_is_no_record_of_a_job_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "jobs").write_text(text)
    words = ("train", "import", tmp_path / "jobs", "--files", tmp_path, "--base-model", "tabular-mini")
    call(*words, "--store", tmp_path / "new.db", status=1)
    assert not (tmp_path / "new.db").exists()


@pytest.mark.parts
def test_what_was_asked_is_collected_and_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open_platform(tmp_path / "yard.db") as platform:
        platform.models.create("bot", project="support", base_model="tabular-mini")
        for words in ("one", "two, 1234", "three"):
            platform.chat.complete(model="echo", messages=words, store=True, metadata={"team": words[:3]})
    words = ["collect", "asked", "--redact", "email", "--redact-pattern", r"\d{4}", "--since", "2020-01-01"]
    found = json.loads(call(*words, "--metadata", "team=two", "--train", "support/bot", "--json").stdout)
    assert (found["rows"], found["step"], found["left_out"]) == (1, 1, "other metadata 2")
    with open_platform(tmp_path / "yard.db") as platform:
        (row,) = platform.traffic.lineage("support/bot", 1)
        assert row.dataset == found["train"]
    shown = json.loads(call("jobs", "show", found["collection"], "--json").stdout)
    assert (shown["status"], shown["train"]["url"], shown["training_job_id"]) == (
        "succeeded",
        found["train"],
        found["job"],
    )
    judge = ["--judge", "echo", "--judge-prompt", "{output}", "--judge-scale", "number", "--at-least", "1000"]
    judged = json.loads(call("collect", "judged", *judge, "--json").stdout)
    assert (judged["rows"], judged["left_out"]) == (1, "no score 2")
    queued = json.loads(call("collect", "later", "--no-wait", "--json").stdout)
    once = [call("collect", "once", "--no-wait", "--idempotency-key", "k", "--json").stdout for _ in range(2)]
    assert once[0] == once[1]
    assert json.loads(call("jobs", "show", queued["collection"], "--json").stdout)["status"] == "queued"
    words = ["collect", "first", "--priority", "5", "--train", "support/bot", "--json"]
    early = [json.loads(call(*words, "--no-wait").stdout)["collection"], json.loads(call(*words).stdout)["job"]]
    assert [json.loads(call("jobs", "show", job, "--json").stdout)["priority"] for job in early] == [5, 5]
    assert "not both" in call("collect", "x", "--judge", "echo", "--score", "up", status=2).stderr
    assert "is not a pattern" in call("collect", "x", "--redact-pattern", "(", status=2).stderr
    assert "'email'" in call("collect", "x", "--redact", "emial", status=1).stderr


def parsed_options(group: click.Command, context: click.Context) -> Iterator[tuple[str, click.Parameter]]:
    """Each option of a command, and of those below it, that a function parses."""
    for param in group.params:
        if isinstance(param.type, click.types.FuncParamType):
            yield f"{context.command_path} {param.name}", param
    for name in group.list_commands(context) if isinstance(group, click.Group) else ():
        below = group.get_command(context, name)
        assert below is not None
        yield from parsed_options(below, click.Context(below, context, name))


def test_what_a_function_refuses_as_an_option_is_refused_in_words() -> None:
    """Not by ValueError: older versions of click then show the value alone."""
    found = dict(parsed_options(main, click.Context(main, info_name="modelyard")))
    assert "modelyard train sft options" in found

    def check(param: click.Parameter) -> None:
        assert isinstance(param.type, click.types.FuncParamType)
        with pytest.raises(click.BadParameter, match=r"^'\(' is not "):
            param.type.func("(")

    check_each(found, check)
