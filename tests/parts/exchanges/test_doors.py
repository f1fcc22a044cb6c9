"""Exchanges are read through each door by which groups come: values, files, the command line, and logs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from modelyard import Platform, open_platform
from modelyard.cli import main
from modelyard.errors import InvalidInput
from modelyard.parts.exchanges.reading import read_trajectory

PROMPT = [{"role": "user", "content": "hi"}]
TOKENS = [{"token": "a", "logprob": -0.5}]
SPOKEN = {"type": "output_text", "text": "a", "annotations": [], "logprobs": TOKENS}
OUTPUT = {"type": "message", "id": "i", "role": "assistant", "status": "completed", "content": [SPOKEN]}
CHOICE = {"message": {"role": "assistant", "content": "a"}, "logprobs": {"content": TOKENS}}
TEXT = {"text": "a", "index": 0, "logprobs": {"tokens": ["a"], "token_logprobs": [-0.5]}}
SAID = {"content": [{"type": "text", "text": "a"}]}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "chat_completions": ({"messages": PROMPT}, {"choices": [CHOICE]}),
    "completions": ({"prompt": [5, 6]}, {"choices": [TEXT]}),
    "responses": ({"input": "hi"}, {"id": "r", "status": "completed", "output": [OUTPUT]}),
    "messages": ({"messages": PROMPT, "max_tokens": 9}, {**SAID, "token_ids": [97], "logprobs": [-0.5]}),
}


def group(kind: str, **replaced: Any) -> dict[str, Any]:
    request, response = KINDS[kind]
    exchange = {"request": {"model": "m", **request}, "response": response}
    exchanges = [{kind: [exchange]}, {kind: [{**exchange, **replaced}]}]
    return {"trajectories": [{"exchanges": one, "reward": float(at)} for at, one in enumerate(exchanges)]}


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform() as platform:
        platform.models.create("m", project="p", base_model="tabular-mini")
        yield platform


@pytest.mark.parametrize("kind", [*KINDS])
def test_values_and_files_train_as_they_are_and_are_logged(platform: Platform, tmp_path: Path, kind: str) -> None:
    data, path = group(kind), tmp_path / "groups.jsonl"
    apart = [*data["trajectories"], {"trajectories": []}]
    for step, lines in enumerate(([data], apart), start=2):
        path.write_text("\n".join(map(json.dumps, lines)))
        assert platform.training.rl("p/m", path).result().step == step - 1
    assert platform.training.rl("p/m", [data]).result().step == 3
    logged = platform.models.log_trajectories("p/m", [data])
    (kept,) = platform.models.logged_trajectories(logged.id)
    assert kept.trajectories == tuple(read_trajectory(one) for one in data["trajectories"])


@pytest.mark.parametrize("kind", [*KINDS])
def test_the_command_line_trains_them_too(yard_file: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "groups.jsonl"
    path.write_text(json.dumps(group(kind)))
    store = ["--store", str(yard_file)]
    made = CliRunner().invoke(main, ["train", "rl", "p/m", str(path), "--base-model", "tabular-mini", *store])
    assert (made.exit_code, "p/m is at step 1" in made.output) == (0, True), made.output


@pytest.mark.parametrize(
    ("kind", "replaced", "place"),
    [
        ("messages", {"response": SAID}, ("response", "token_ids")),
        ("messages", {"response": {**SAID, "token_ids": [97]}}, ("response", "logprobs")),
        ("chat_completions", {"request": {"messages": [{"role": "x"}]}}, ("request", "messages", 0, "role")),
        ("completions", {"request": {"prompt": "text"}}, ("response", "choices", 0, "prompt_token_ids")),
        ("responses", {"requests": {}}, ("requests",)),
    ],
)
def test_what_cannot_be_trained_is_refused_at_its_line_and_place(
    platform: Platform, tmp_path: Path, kind: str, replaced: dict[str, Any], place: tuple[Any, ...]
) -> None:
    data, path = group(kind, **replaced), tmp_path / "groups.jsonl"
    path.write_text("\n".join(map(json.dumps, [group(kind), data])))
    for given, below in ((path, ("line", 2)), ([group(kind), data], ("data", 1))):
        with pytest.raises(InvalidInput) as refused:
            platform.training.rl("p/m", given)
        (problem,) = refused.value.problems
        assert problem.loc == (*below, "trajectories", 1, "exchanges", kind, 0, *place)
    assert not list(platform.training.list())


def test_answers_of_messages_are_logged_without_their_tokens(platform: Platform) -> None:
    assert platform.models.log_trajectories("p/m", [group("messages", response=SAID)]).trajectories == 2
