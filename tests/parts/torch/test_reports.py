"""What strangers reported of tools that serve and train local models, a row a report: how a folder or a row is changed,
and what must come out. The reports of what needs no torch are in `tests/reports`."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from modelyard import Message, Role, Trajectory, TrajectoryGroup, Tuning, open_platform
from modelyard.errors import InvalidInput, JobFailed, ModelyardError

USER = {"role": "user", "content": "hello there"}
ANSWER = {"role": "assistant", "content": "I am fine."}
WEIGHTS = "model.safetensors"


@pytest.fixture
def copy(folders: Callable[..., Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(folders("nano"), tmp_path / "kept"))


def untouched(folder: Path) -> Path:
    return folder


def padded_header(folder: Path) -> Path:
    raw, size = (folder / WEIGHTS).read_bytes(), 1_304_896
    length = int.from_bytes(raw[:8], "little")
    (folder / WEIGHTS).write_bytes(size.to_bytes(8, "little") + raw[8 : 8 + length].ljust(size) + raw[8 + length :])
    return folder


def named_templates(folder: Path) -> Path:
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").unlink()
    path = folder / "tokenizer_config.json"
    named = [{"name": name, "template": template} for name in ("default", "tool_use")]
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": named}))
    return folder


def links_into_a_cache(folder: Path) -> Path:
    snapshot = folder.with_name("snapshot")
    snapshot.mkdir()
    for name in os.listdir(folder):
        (snapshot / name).symlink_to(f"../{folder.name}/{name}")
    return snapshot


def odd_name(folder: Path) -> Path:
    return Path(shutil.move(folder, folder.with_name("a b%20 日本")))


def not_numbers(folder: Path) -> Path:
    weights = load_file(folder / WEIGHTS)
    next(one for name, one in weights.items() if "up_proj" in name)[0, 0] = float("nan")
    save_file(weights, folder / WEIGHTS, {"format": "pt"})
    return folder


FOLDERS: list[tuple[Callable[[Path], Path], str]] = [
    (untouched, ""),
    (padded_header, ""),
    (named_templates, ""),
    (links_into_a_cache, ""),
    (odd_name, ""),
    (not_numbers, "nan|number|finite"),
]


@pytest.mark.parametrize(("changed", "refused"), FOLDERS)
def test_a_folder_answers_or_its_fault_is_named(copy: Path, changed: Callable[[Path], Path], refused: str) -> None:
    with open_platform() as yard:

        def answer() -> str:
            yard.add_base_model(changed(copy), id="tiny")
            return str(yard.chat.complete(model="tiny", messages=[USER], max_tokens=2).choices[0].finish_reason)

        if refused:
            with pytest.raises(ModelyardError, match=rf"(?i){refused}"):
                answer()
        else:
            assert answer() in ("length", "stop")


LONG = {"role": "user", "content": "hello " * 4000}
ROWS: dict[str, tuple[list[Any], str]] = {
    "an answer that begins with a line": ([USER, {**ANSWER, "content": "\nhello"}], ""),
    "an answer that is only a line": ([USER, {**ANSWER, "content": "\n"}], ""),
    "a row that is too long": ([LONG, ANSWER], "too long|longer|fits|tokens"),
    "an answer of weight 0": ([USER, {**ANSWER, "weight": 0}], "weight"),
    "an answer that says nothing": ([USER, {"role": "assistant", "content": None}], "is required"),
}


@pytest.mark.parametrize("what", ROWS)
def test_a_row_is_trained_or_refused_and_never_a_success_without_a_token(copy: Path, what: str) -> None:
    messages, refused = ROWS[what]
    with open_platform() as yard:
        yard.add_base_model(copy, id="tiny", tuning=Tuning.LORA)
        yard.models.create("m", project="d", base_model="tiny")
        if refused:
            with pytest.raises((InvalidInput, JobFailed), match=refused):
                yard.training.sft("d/m", [{"messages": messages}] * 2).result()
        else:
            found = yard.training.sft("d/m", [{"messages": messages}] * 2).result().metrics
            assert (found["num_trainable_tokens"] >= 2, "loss" in found) == (True, True)


def test_a_tuned_model_stops_where_its_answers_did(copy: Path) -> None:
    with open_platform() as yard:
        yard.add_base_model(copy, id="tiny", tuning=Tuning.FULL)
        yard.models.create("m", project="d", base_model="tiny")
        rows = [{"messages": [USER, {**ANSWER, "content": "ok"}]}] * 120
        yard.training.sft("d/m", rows, batch_size=4, learning_rate=2e-2).result()
        found = yard.chat.complete(model="local/d/m", messages=[USER], max_tokens=30, temperature=0)
    assert (found.text, str(found.choices[0].finish_reason)) == ("ok", "stop")


@pytest.mark.parametrize("sampling", [{"temperature": 0.3}, {"top_p": 0.5}, {"frequency_penalty": 1.5}])
def test_the_first_step_of_rl_is_on_policy_however_it_was_sampled(copy: Path, sampling: Any) -> None:
    with open_platform() as yard:
        yard.add_base_model(copy, id="tiny", tuning=Tuning.LORA)
        yard.models.create("m", project="d", base_model="tiny")
        asked: Any = {"model": "tiny", "messages": [USER], "n": 4, "max_tokens": 8, "logprobs": True, "seed": 1}
        choices = yard.chat.complete(**asked, **sampling).choices
        prompt = [Message(Role.USER, USER["content"])]
        group = tuple(Trajectory.of(prompt, choice, reward=at) for at, choice in enumerate(choices))
        done = yard.training.rl("d/m", [TrajectoryGroup(group)], learning_rate=1e-4).result()
    assert done.metrics["importance_ratio"] == pytest.approx(1, abs=1e-5)
