"""Checkpoints pushed to a hub: one commit with a card, private unless asked, with the host's own token."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner
from hub_pushes import Taken, taken
from hub_server import Hub, hub_of
from huggingface_hub import constants
from huggingface_hub.utils import are_progress_bars_disabled, enable_progress_bars
from peft import AutoPeftModelForCausalLM
from test_exports import answered_here, answered_there, assert_same_answer, trained

from modelyard import Platform, open_platform
from modelyard.cli import main
from modelyard.errors import BackendError, Conflict, Forbidden, InvalidInput, MissingExtra, Overloaded
from modelyard.parts.doubles.network_guard import LoopbackGuard

pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),  # peft asks for it
    pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning"),  # huggingface_hub does not
]

NAME, MADE = "org/tiny", "org/counter"


@pytest.fixture
def hub(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with hub_of(tiny=folder) as served, LoopbackGuard():
        monkeypatch.setenv("HF_TOKEN", served.token)
        monkeypatch.setattr(constants, "ENDPOINT", served.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", served.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
        served.takes, served.pushed = taken, Taken()
        yield served


@pytest.fixture
def yard(hub: Hub) -> Iterator[Platform]:
    with open_platform() as platform:
        platform.add_base_model(NAME, id="tiny")
        trained(platform, "tiny")
        yield platform


def test_a_pushed_adapter_is_loaded_from_the_hub_by_its_name(hub: Hub, yard: Platform, tmp_path: Path) -> None:
    made = yard.models.push("demo/counter", MADE, license="mit")
    assert (made.name, made.url, made.commit) == (MADE, f"{hub.url}/{MADE}", hub.branches["main"])
    assert hub.pushed.private == {MADE: True}
    assert hub.pushed.messages == ["counter, step 1, adapter"]
    assert 'license: "mit"' in hub.pushed.cards[0]
    hub.branches["main"] = "a" * 40  # a branch of all models of this hub
    for name, data in hub.models[MADE].items():
        (tmp_path / "fetched").mkdir(exist_ok=True)
        (tmp_path / "fetched" / name).write_bytes(data)
    network = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "fetched").eval()
    want = answered_here(yard, "local/demo/counter:step1")
    assert_same_answer(answered_there(network, tmp_path / "fetched"), want)


def test_a_program_that_pushes_prints_nothing_and_is_told_what_is_written(
    hub: Hub, yard: Platform, capfd: pytest.CaptureFixture[str]
) -> None:
    told: list[tuple[int, int]] = []
    enable_progress_bars()  # as in a process that has loaded no model
    capfd.readouterr()
    yard.models.push("demo/counter", MADE, merged=True, progress=lambda *both: told.append(both))
    assert capfd.readouterr() == ("", "")
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1] > 0
    assert not are_progress_bars_disabled()


def test_a_pushed_merged_model_is_added_by_its_name(hub: Hub, yard: Platform) -> None:
    yard.models.push("demo/counter", MADE, merged=True)
    yard.add_base_model(MADE, id="merged")
    assert_same_answer(answered_here(yard, "merged"), answered_here(yard, "local/demo/counter:step1"))


def test_a_file_for_llama_cpp_is_pushed_with_its_card(hub: Hub, yard: Platform) -> None:
    pytest.importorskip("gguf")
    yard.models.push("demo/counter", MADE, gguf="q8_0")
    assert set(hub.models[MADE]) == {"README.md", "counter-step1-q8_0.gguf"}
    assert b'library_name: "gguf"' in hub.models[MADE]["README.md"]


def test_only_who_asks_for_it_makes_a_model_public(hub: Hub, yard: Platform) -> None:
    yard.models.push("demo/counter", "org/open", private=False)
    assert hub.pushed.private == {"org/open": False}
    with pytest.raises(Conflict, match="public"):
        yard.models.push("demo/counter", "org/open")
    assert len(hub.pushed.messages) == 1
    yard.models.push("demo/counter", "org/open", private=False, revision="v2", merged=True)
    assert hub.pushed.branches == ["main", "v2"]


def test_nothing_is_sent_before_it_is_asked_for(hub: Hub, yard: Platform, tmp_path: Path) -> None:
    yard.models.export("demo/counter", tmp_path / "adapter")
    assert {method for method, *_ in hub.asked} <= {"GET", "HEAD"}


def test_who_has_no_right_is_told_what_to_do(hub: Hub, yard: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(Forbidden, match="hf auth login") as refused:
        yard.models.push("demo/counter", MADE)
    assert "hf_wrong" not in str(refused.value)
    assert MADE not in hub.models


@pytest.mark.parametrize(
    ("status", "kind"), [(403, Forbidden), (404, Forbidden), (400, BackendError), (500, BackendError)]
)
def test_a_commit_that_is_refused_shows_nothing(hub: Hub, yard: Platform, status: int, kind: type[Exception]) -> None:
    hub.pushed.refused = status
    with pytest.raises(kind) as refused:
        yard.models.push("demo/counter", MADE)
    assert hub.models[MADE] == {}
    assert not any(secret in str(refused.value) for secret in ("user:pass", "s3cr3t", hub.token))
    hub.pushed.refused, hub.pushed.large_refused = 0, status
    with pytest.raises(kind):
        yard.models.push("demo/counter", MADE)
    hub.pushed.large_refused = 0
    assert yard.models.push("demo/counter", MADE).commit


def test_a_busy_hub_says_when_to_come_again(hub: Hub, yard: Platform) -> None:
    hub.busy = 50
    with pytest.raises(Overloaded, match="7 s"):
        yard.models.push("demo/counter", MADE)


def test_a_hub_that_is_away_is_said(hub: Hub, yard: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(BackendError, match=r"push again$"):
        yard.models.push("demo/counter", MADE)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    with pytest.raises(BackendError, match="push again, with HF_HUB_DISABLE_XET=1 if this hub has no Xet storage"):
        yard.models.push("demo/counter", MADE)


def test_what_cannot_be_pushed_is_refused_before_anything_is_sent(
    hub: Hub, yard: Platform, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    hub.asked.clear()
    for name in ("no", "org/a/b", "org/-x-"):
        with pytest.raises(InvalidInput, match="name"):
            yard.models.push("demo/counter", name)
    yard.add_base_model(folder, id="plain")
    trained(yard, "plain", "local")
    with pytest.raises(InvalidInput, match="folder of this machine"):
        yard.models.push("demo/local", MADE)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InvalidInput, match="HF_HUB_OFFLINE"):
        yard.models.push("demo/counter", MADE)
    assert hub.asked == []


def test_the_command_pushes(hub: Hub, tmp_path: Path) -> None:
    store = tmp_path / "yard.db"
    with open_platform(store) as platform:
        platform.add_base_model(NAME, id="tiny")
        trained(platform, "tiny")
    words = ["models", "push", "demo/counter", MADE, "--store", str(store), "--license", "mit"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    assert f"{hub.url}/{MADE} is at commit {hub.branches['main']}" in result.output
    assert hub.pushed.private == {MADE: True}


# ---- an object store -----------------------------------------------------------------------------------------------


def test_an_object_store_gets_the_files_and_the_configuration_last(
    hub: Hub, yard: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bucket itself is tested with the part of object stores."""
    import sys
    from types import ModuleType

    sent: list[tuple[str, list[str]]] = []

    @attrs.frozen
    class ObjectFolder:
        address: str

        def require_empty(self) -> None:
            if self.address.endswith("full"):
                raise Conflict("there are objects")

        def upload(self, folder: Path, order: Any, progress: Any) -> None:
            progress(7, 7)
            sent.append((self.address, sorted(os.listdir(folder), key=lambda name: (order(name), name))))

    stand_in = ModuleType("modelyard.parts.objects.uploads")
    stand_in.ObjectFolder = ObjectFolder  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)
    yard.models.export("demo/counter", "s3://bucket/place")
    told: list[tuple[int, int]] = []
    yard.models.export("demo/counter", "s3://bucket/place", merged=True, progress=lambda *both: told.append(both))
    assert [done / total for done, total in (told[-2], told[-1])] == [0.5, 1]
    (place, adapter), (_, merged) = sent
    assert place == "s3://bucket/place"
    assert (adapter[-1], merged[-1]) == ("adapter_config.json", "config.json")
    with pytest.raises(Conflict):
        yard.models.export("demo/counter", "s3://bucket/full")


def test_an_object_store_needs_its_extra(hub: Hub, yard: Platform) -> None:
    pytest.importorskip("peft")
    try:
        import obstore  # noqa: F401
    except ImportError:
        with pytest.raises(MissingExtra, match="objects"):
            yard.models.export("demo/counter", "s3://bucket/place")
