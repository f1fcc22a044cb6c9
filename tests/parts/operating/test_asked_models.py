"""Which models `ask` and `serve` add before they are asked: those that nothing here answers to, and no folder."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from modelyard import Example, Message, Role, open_platform
from modelyard.cli import main
from modelyard.errors import NotFound
from modelyard.parts.asked_models import offer_named
from modelyard.parts.torch import service

ROWS = [Example((Message(Role.USER, "ping"), Message(Role.ASSISTANT, "pong")))] * 4
TRAINED = ["support/bot", "support/bot:latest", "support/bot:step1", "support/bot:prod"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the model support/bot of the entity `local`."""
    path = tmp_path_factory.mktemp("yard") / "yard.db"
    with open_platform(path) as platform:
        model = platform.models.create("bot", project="support", base_model="tabular-mini")
        platform.training.sft(model.id, ROWS).wait()
        platform.models.promote(model, 1)
    return path


@pytest.fixture
def looked_for(monkeypatch: pytest.MonkeyPatch, trained: Path) -> list[str]:
    """The base models that were looked for on this machine; there is none."""
    names: list[str] = []

    def read(path: str, *_: Any, **__: Any) -> Any:
        names.append(path)
        raise NotFound("base model", path, "fetch it first")

    monkeypatch.setattr(service, "read_source", read)
    monkeypatch.chdir(trained.parent)
    return names


def ask(name: str, store: Path) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["ask", "--temperature", "0", "--store", str(store), name, "ping"])
    return result.exit_code, result.output


@pytest.mark.parametrize("name", TRAINED)
def test_a_trained_model_is_asked_and_not_looked_for_elsewhere(name: str, trained: Path, looked_for: list[str]) -> None:
    assert (ask(name, trained), looked_for) == ((0, "pong\n"), [])


@pytest.mark.parametrize("name", [*TRAINED, "local/support/bot", "echo"])
def test_a_model_that_is_served_is_not_added_to_a_server(name: str, trained: Path, looked_for: list[str]) -> None:
    with open_platform(trained) as platform:
        offer_named(platform, name)
    assert looked_for == []


def test_a_name_that_nothing_here_answers_to_is_looked_for_in_the_cache_of_a_hub(
    trained: Path, looked_for: list[str]
) -> None:
    code, says = ask("org/unknown", trained)
    assert (code, "fetch it first" in says, looked_for) == (1, True, ["org/unknown"])


@pytest.mark.parametrize("name", ["folder/model", "./model", "../model", "folder/none", "support/bot:step9"])
def test_a_folder_or_a_version_is_not_taken_for_a_base_model(
    name: str, trained: Path, looked_for: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "folder" if name.startswith("..") else tmp_path)
    code, says = ask(name, trained)
    assert (code, "not found" in says, looked_for) == (1, True, [])


@pytest.mark.parametrize("name", ["./model", "model", "folder/model.gguf"])
def test_a_path_says_what_offers_it(
    name: str, trained: Path, looked_for: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("model", "folder/model.gguf"):
        (tmp_path / path).mkdir(parents=True)
    code, says = ask(name, trained)
    assert (code, f"offer it first: modelyard base-models add {name}" in says, looked_for) == (1, True, [])
