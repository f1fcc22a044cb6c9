"""A folder whose files do not hold what they say, or no longer what they held, is never answered from or trained on."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from local_models import base_model
from safetensors.torch import load_file, save_file

from modelyard import open_platform
from modelyard.errors import BackendError, JobFailed
from modelyard.parts.torch.network import Network
from modelyard.parts.torch.serving.backend import LocalBackend

WEIGHTS = "model.safetensors"


@pytest.fixture
def copy(folders: Callable[..., Path], tmp_path: Path) -> Path:
    return shutil.copytree(folders("nano"), tmp_path / "kept")


def configured(folder: Path, **entries: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


def without(folder: Path, name: str) -> None:
    weights = load_file(folder / WEIGHTS)
    del weights[name]
    save_file(weights, folder / WEIGHTS, {"format": "pt"})


LIES: list[tuple[Callable[[Path], None], str]] = [
    (lambda folder: without(folder, "model.layers.1.mlp.up_proj.weight"), r"layers\.1\.mlp\.up_proj"),
    (lambda folder: configured(folder, num_hidden_layers=3, layer_types=["full_attention"] * 3), r"layers\.2\."),
    (lambda folder: configured(folder, hidden_size=48), r"config\.json describes"),
    (lambda folder: configured(folder, hidden_act="shrug"), "shrug"),
    (lambda folder: configured(folder, num_hidden_layers=5), "num_hidden_layers"),
]


@pytest.mark.parametrize(("lie", "reported"), LIES)
def test_weights_that_are_not_those_of_the_configuration_are_never_made_up(
    copy: Path, lie: Callable[[Path], None], reported: str
) -> None:
    lie(copy)
    with pytest.raises(BackendError, match=f"'kept' cannot be loaded: .*{reported}"):
        Network(copy)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("model.layers.1.mlp.up_proj.weight", (3, 5)),
        ("model.norm.weight", (2,)),
        ("model.embed_tokens.weight", (258, 1)),  # of a token that the check does not read
    ],
)
def test_weights_that_are_not_numbers_are_named(copy: Path, name: str, place: tuple[int, ...], value: float) -> None:
    weights = load_file(copy / WEIGHTS)
    weights[name][place] = value
    save_file(weights, copy / WEIGHTS, {"format": "pt"})
    at = ", ".join(map(str, place))
    with pytest.raises(BackendError, match=rf"not all numbers: {re.escape(name)}\[{at}\] is {value}, one of 1"):
        Network(copy)


def test_code_of_a_folder_never_runs_and_no_prompt_asks_for_it(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    configured(copy, model_type="own", auto_map={"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"})
    (copy / "own.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(BackendError, match="cannot be loaded"):
        Network(copy)


def test_a_changed_folder_is_neither_served_nor_trained_on(copy: Path) -> None:
    row = {"messages": [{"role": "user", "content": "ping"}, {"role": "assistant", "content": "pong"}]}
    with open_platform() as platform:
        platform.add_base_model(copy, id="tiny")
        platform.models.create("parrot", project="birds", base_model="tiny")
        (copy / "chat_template.jinja").write_text("{{ messages[0].content }}")
        with pytest.raises(BackendError, match=r"not as it was when it was added \(chat_template\.jinja\)"):
            platform.chat.complete(model="tiny", messages="ping", max_tokens=2)
        with pytest.raises(JobFailed, match=r"not as it was"):
            platform.training.sft("birds/parrot", [row]).wait()


def test_an_error_of_the_tokenizer_is_reported_as_a_fault_of_the_folder(copy: Path) -> None:
    configured(copy, num_attention_heads="two")
    backend = LocalBackend([base_model(copy, "tiny")])
    with (
        open_platform(backend=backend) as platform,
        pytest.raises(BackendError, match="'kept' cannot be loaded"),
    ):
        platform.chat.complete(model="tiny", messages="ping", max_tokens=2)
