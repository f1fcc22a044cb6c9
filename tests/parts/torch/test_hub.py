"""Models of a hub by name: fetched once, at one commit, checked by digest; and every way in which that goes wrong."""

import errno
import json
import logging
import os
import random
import re
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hub_server import LARGE, Hub, hub_of
from huggingface_hub import constants
from hypothesis import given
from hypothesis import strategies as st

from modelyard import open_platform
from modelyard.cli import main
from modelyard.errors import (
    BackendError,
    Forbidden,
    InvalidInput,
    ModelyardError,
    NotFound,
    Overloaded,
    StorageFull,
)
from modelyard.parts.doubles.network_guard import LoopbackGuard
from modelyard.parts.torch import hub as of_hub
from modelyard.parts.torch.commands import shown_on
from modelyard.parts.torch.sources import is_hub_name, read_source

NAME = "org/tiny"
COMMIT = "a" * 40
PIECE = 1000
"""Bytes that are written at a time: what came of the next piece is asked again."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a place without folders of that name."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


@pytest.fixture
def hub(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_of(tiny=folder) as served, LoopbackGuard():
        monkeypatch.setattr(constants, "ENDPOINT", served.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", served.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        for module in ("huggingface_hub.file_download", "huggingface_hub.utils._http"):
            monkeypatch.setattr(f"{module}.time.sleep", lambda seconds: None)
        yield served


def weights_of(hub: Hub) -> bytes:
    return hub.models[NAME]["model.safetensors"]


def call(*words: object, status: int = 0) -> Any:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == status, (result.output, result.exception)
    return result


# ---- what holds ----------------------------------------------------------------------------------------------------


def test_a_model_is_added_by_its_name_and_answers(hub: Hub, tmp_path: Path) -> None:
    reported: list[tuple[int, int]] = []
    with open_platform(tmp_path / "yard.db") as yard:
        entry = yard.add_base_model(NAME, progress=lambda *done: reported.append(done))
        assert (entry.id, entry.hub_id) == (NAME, NAME)
        (base,) = yard.base_models()
        assert base.source == {"hub_id": NAME, "revision": COMMIT, "endpoint": hub.url}
        assert yard.chat.complete(model=NAME, messages="hi", max_tokens=3).usage.completion_tokens
    shares = [done / total for done, total in reported]
    assert shares == sorted(shares)
    assert reported[-1][0] == reported[-1][1] > len(weights_of(hub))
    with open_platform(tmp_path / "yard.db") as yard:
        assert next(one for one in yard.catalogue.list() if one.id == NAME).hub_id == NAME


def test_the_licence_is_kept_and_is_in_the_card(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.licenses[NAME] = "apache-2.0"
    with open_platform() as yard:
        added = yard.add_base_model(NAME)
        (base,) = yard.base_models()
        assert base.source["license"] == "apache-2.0"
        yard.models.create("m", project="demo", base_model=NAME)
        for kind, license in (("known", None), ("own", "mit")):
            yard.models.export("demo/m", tmp_path / kind, merged=True, license=license)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        assert yard.add_base_model(NAME) == added
        (base,) = yard.base_models()
        assert base.source["license"] == "apache-2.0"
    cards = [(tmp_path / kind / "README.md").read_text() for kind in ("known", "own")]
    assert ['license: "apache-2.0"' in cards[0], 'license: "mit"' in cards[1]] == [True, True]


@pytest.mark.parametrize("said", ["", 'mit"\nx: 1', "a" * 65])
def test_a_licence_that_is_no_id_is_left_out(said: str, hub: Hub) -> None:
    hub.licenses[NAME] = said
    assert "license" not in of_hub.fetch(NAME).source


def test_a_bar_moves_in_steps_that_its_rate_can_be_told_from(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int] = []
    with click.progressbar(length=1) as bar:
        monkeypatch.setattr(bar, "update", lambda size: (moved.append(size), setattr(bar, "pos", bar.pos + size)))
        read = shown_on(bar)
        for done in (0, 1, 49, 50, 60, 99, 100, 9_990, 10_000):
            read(done, 10_000)
    assert moved == [50, 50, 9_890, 10]


def test_another_id_keeps_the_name_of_the_hub(hub: Hub) -> None:
    with open_platform() as yard:
        entry = yard.add_base_model(NAME, id="mine")
    assert (entry.id, entry.hub_id) == ("mine", NAME)


def test_only_what_is_read_is_fetched(hub: Hub) -> None:
    hub.models[NAME] |= {"pytorch_model.bin": b"x" * 9000, "README.md": b"x", "onnx/model.safetensors": b"x"}
    of_hub.fetch(NAME)
    assert not any(name in path for _, path, _ in hub.asked for name in ("pytorch_model", "README", "onnx"))


def test_a_branch_a_tag_and_a_commit_are_pinned_by_commit(hub: Hub) -> None:
    hub.branches |= {"v2": "b" * 40, "refs/pr/1": "c" * 40}
    for revision, commit in (("v2", "b" * 40), ("b" * 40, "b" * 40), (None, COMMIT)):
        found = of_hub.fetch(NAME, revision)
        assert (found.commit, found.folder.name) == (commit, commit)


def test_a_branch_that_moves_is_another_commit_and_the_one_before_stays(hub: Hub) -> None:
    with open_platform() as yard:
        yard.add_base_model(NAME, id="before")
        hub.branches["main"] = "d" * 40
        yard.add_base_model(NAME, id="after")
        assert [one.source["revision"] for one in yard.base_models()] == ["d" * 40, COMMIT]


def test_what_is_there_is_not_fetched_again(hub: Hub) -> None:
    with open_platform() as yard:
        first = yard.add_base_model(NAME)
        hub.asked.clear()
        assert yard.add_base_model(NAME) == first
    assert [method for method, path, _ in hub.asked if not path.startswith("api/")] == []


def test_without_a_connection_it_comes_from_the_cache(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = read_source(NAME)
    for setting, value in (("ENDPOINT", "http://127.0.0.1:1"), ("HF_HUB_OFFLINE", True)):
        monkeypatch.setattr(constants, setting, value)
        hub.asked.clear()
        assert read_source(NAME).folder == fetched.folder
        assert read_source(NAME, COMMIT).folder == fetched.folder
        assert hub.asked == []


def test_local_only_asks_no_hub(hub: Hub) -> None:
    with pytest.raises(NotFound, match=f"modelyard base-models add {NAME}"):
        read_source(NAME, local_only=True)
    assert hub.asked == []
    of_hub.fetch(NAME)
    hub.asked.clear()
    assert read_source(NAME, local_only=True).source["revision"] == COMMIT
    assert hub.asked == []


def test_a_hub_that_is_away_is_said_when_the_cache_stands_in(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    of_hub.fetch(NAME)
    assert caplog.messages == []
    monkeypatch.setattr(constants, "ENDPOINT", "http://user:s3cr3t@127.0.0.1:9")
    with caplog.at_level("WARNING", "modelyard"):
        assert of_hub.fetch(NAME).commit == COMMIT
    assert caplog.messages == [
        f"http://127.0.0.1:9 cannot be reached: {NAME} is what its cache has, as it was last fetched"
    ]


def test_what_only_a_cache_without_links_has_is_taken_as_it_is(hub: Hub, cache: Path) -> None:
    folder = of_hub.fetch(NAME).folder
    for path in folder.iterdir():
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)
    assert read_source(NAME, local_only=True).folder.parameters


def test_the_token_is_sent_to_the_hub_and_to_nobody_else(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.private.add(NAME)
    monkeypatch.setenv("HF_TOKEN", hub.token)
    of_hub.fetch(NAME)
    sent = {path.startswith("storage/"): token for path, token in hub.tokens}
    assert sent == {False: f"Bearer {hub.token}", True: ""}


# ---- cuts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_a_cut_connection_is_continued_where_it_ended(hub: Hub, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", PIECE)
    draw = random.Random(seed)
    cuts = [draw.randint(PIECE, 20_000) for _ in range(draw.randint(1, 4))]
    hub.cut("model.safetensors", cuts)
    found = read_source(NAME)  # which has checked the digest
    assert found.source["revision"] == COMMIT
    ranges = [part for method, path, part in hub.asked if method == "GET" and path.startswith("storage/") and part]
    whole = [cut // PIECE * PIECE for cut in cuts]
    assert ranges == [f"bytes={sum(whole[:count])}-" for count in range(1, len(cuts) + 1)]


def test_files_of_a_call_that_gave_up_are_there_for_the_next(hub: Hub) -> None:
    hub.cut("model.safetensors", [30_000] + [0] * 10)
    with pytest.raises(BackendError, match="files that were fetched whole are kept"):
        of_hub.fetch(NAME)
    hub.cuts.clear()
    hub.asked.clear()
    read_source(NAME)
    assert {path.rpartition("/")[2] for _, path, _ in hub.asked if not path.startswith("api/")} == {"model.safetensors"}


# ---- refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"])
def test_other_bytes_than_the_digest_names_are_refused_removed_and_fetched_anew(hub: Hub, file: str) -> None:
    whole = hub.models[NAME][file]
    hub.sent[file] = whole[:-1] + b"\1" if file == "model.safetensors" else whole.replace(b" ", b"\t")
    assert hub.sent[file] != whole
    with open_platform() as yard:
        with pytest.raises(BackendError, match=f"digest that the hub names.*{file}"):
            yard.add_base_model(NAME)
        assert not list(yard.base_models())
        hub.sent.clear()
        assert yard.add_base_model(NAME).id == NAME


def test_a_cache_that_was_damaged_is_noticed_without_a_hub(hub: Hub) -> None:
    weights = of_hub.fetch(NAME).folder / "model.safetensors"
    data = weights.read_bytes()
    weights.resolve().write_bytes(data[:-1] + b"\1")
    with pytest.raises(BackendError, match=r"digest.*model\.safetensors"):
        read_source(NAME, local_only=True)


def test_a_hub_that_names_no_digests_is_believed_by_its_tags_alone(hub: Hub) -> None:
    hub.no_digests = True
    assert read_source(NAME).source["revision"] == COMMIT


def test_gated_and_private_models_say_how_to_get_them(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.gated.add(NAME)
    with pytest.raises(Forbidden, match=f"accept its terms at {hub.url}/{NAME}, and log in"):
        of_hub.fetch(NAME)
    hub.gated.clear()
    hub.private.add(NAME)
    with pytest.raises(NotFound, match="if it is private, log in"):
        of_hub.fetch(NAME)
    with pytest.raises(NotFound, match="HF_TOKEN"):
        of_hub.fetch("org/nothing")
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert of_hub.fetch(NAME).commit == COMMIT


def test_an_unknown_revision_is_named(hub: Hub) -> None:
    with pytest.raises(NotFound, match=r"'v9' not found; org/tiny at .* has no such branch"):
        of_hub.fetch(NAME, "v9")


def test_a_busy_hub_says_when_to_come_again(hub: Hub) -> None:
    hub.busy = 100
    with pytest.raises(Overloaded, match="in 7 s") as busy:
        of_hub.fetch(NAME)
    assert busy.value.retry_after == 7


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_file_that_is_refused_for_a_while_comes_by_asking_again(hub: Hub, file: str) -> None:
    hub.busy_at.add(file)
    try:
        of_hub.fetch(NAME)
    except Overloaded:  # the library asks again for some of its requests only
        of_hub.fetch(NAME)
    assert not hub.busy_at


Usage = namedtuple("Usage", "total used free")


def test_too_little_room_is_said_before_weights_are_fetched(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_hub.shutil, "disk_usage", lambda path: Usage(9, 8, 1))
    with pytest.raises(StorageFull, match="HF_HOME"), pytest.warns(UserWarning, match="disk space"):
        of_hub.fetch(NAME)
    assert not any(path.startswith("storage/") and "safetensors" in path for _, path, _ in hub.asked)


def test_a_disk_that_fills_up_is_said_and_what_came_is_kept(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    real = of_hub.huggingface_hub.hf_hub_download

    def download(name: str, file: str, **options: Any) -> str:
        if file.endswith(".safetensors"):
            with full.open("wb") as written:
                written.write(b"x")
        return str(real(name, file, **options))

    monkeypatch.setattr(of_hub.huggingface_hub, "hf_hub_download", download)
    with pytest.raises(StorageFull, match="files that were fetched whole are kept"):
        of_hub.fetch(NAME)
    monkeypatch.setattr(of_hub.huggingface_hub, "hf_hub_download", real)
    assert read_source(NAME).folder.parameters


WRONG_MODELS: list[tuple[dict[str, bytes | None], str]] = [
    ({"config.json": None}, "has no config.json; this is not a model"),
    ({"config.json": None, "tiny.Q4_0.gguf": b"GGUF"}, r"GGUF files: fetch one \(hf download org/tiny tiny.Q4_0.gguf"),
    ({"config.json": None, "adapter_config.json": b"{}"}, "it is an adapter; add its base model"),
    ({"model.safetensors": None}, "has no model.safetensors"),
    ({"tokenizer.json": None}, "tokenizer.json: is missing"),
    ({"chat_template.jinja": None}, "chat_template"),
]


@pytest.mark.parametrize(("changed", "says"), WRONG_MODELS)
def test_a_model_that_is_not_served_is_refused_before_its_weights_come(
    hub: Hub, changed: dict[str, bytes | None], says: str
) -> None:
    files = hub.models[NAME]
    hub.models[NAME] = {name: data for name, data in {**files, **changed}.items() if data is not None}
    with pytest.raises(InvalidInput, match=says):
        of_hub.fetch(NAME)
    assert not any("model.safetensors" in path for _, path, _ in hub.asked)


INDEX = "model.safetensors.index.json"
INDEXES = [
    (b"[]", "must be an object"),
    (b"{", "is not JSON"),
    (b"[" * 100_000, "is not JSON"),
    (b"{}", "must hold a weight_map"),
    (b'{"weight_map": []}', "must hold a weight_map"),
    (b'{"weight_map": {"a": ["model-1.safetensors"]}}', "not a safetensors file"),
    (b'{"weight_map": {"a": 1, "b": "model-1.safetensors"}}', "names '1', which is not a safetensors file"),
    (b'{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}', "names 'model-2.safetensors'"),
    (b'{"weight_map": {"a": "model-1.safetensors", "b": "../model-1.safetensors"}}', "names '../model-1"),
]


def test_the_progress_of_weights_in_several_files_counts_them_from_the_start(hub: Hub) -> None:
    files, reported = hub.models[NAME], list[float]()
    weights = files.pop("model.safetensors")
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    files |= dict.fromkeys(names, weights) | {
        INDEX: json.dumps({"weight_map": {"a": names[0], "b": names[1]}}).encode()
    }
    of_hub.fetch(NAME, None, lambda done, total: reported.append(done / total))
    assert reported == sorted(reported)
    assert (reported[0] < 0.01, reported[-1]) == (True, 1)


@pytest.mark.parametrize(("index", "says"), INDEXES)
def test_a_wrong_index_of_weights_is_refused_before_any_come(hub: Hub, index: bytes, says: str) -> None:
    files = hub.models[NAME]
    files |= {INDEX: index, "model-1.safetensors": files.pop("model.safetensors")}
    with pytest.raises(InvalidInput, match=says) as refused:
        of_hub.fetch(NAME)
    assert refused.value.problems[0].loc == ("path", INDEX)
    assert not any(path.endswith(".safetensors") for _, path, _ in hub.asked)


@pytest.mark.parametrize("file", [INDEX, "tokenizer.json", "additional_chat_templates/tool_use.jinja"])
def test_a_small_file_that_is_far_too_large_is_not_fetched(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    monkeypatch.setattr(of_hub, "MAX_JSON", 50_000)
    hub.models[NAME][file] = b" " * 50_001
    with pytest.raises(InvalidInput, match="is larger than"):
        of_hub.fetch(NAME)
    assert not any(path.endswith(file) for _, path, _ in hub.asked)


WRONG_NAMES = ["org/name.git", "a--b/c", "a/b--c", "-org/x", "org-/x", "org/x.", "org/-x", ".org/x.", f"o/{'x' * 96}."]


@pytest.mark.parametrize("name", [name for name in WRONG_NAMES if is_hub_name(name)])
@pytest.mark.parametrize("door", [("base-models", "add"), ("ask",), ("serve",)])
def test_a_name_that_no_hub_has_is_refused_at_every_door(hub: Hub, name: str, door: tuple[str, ...]) -> None:
    said = call(*door, "--", name, *(["hi"] if door == ("ask",) else []), status=1).output
    assert f"{name!r} is not a name that a model of a hub can have" in said
    for local_only in (False, True):
        with pytest.raises(InvalidInput, match="can have"):
            read_source(name, local_only=local_only)
    assert hub.asked == []


@given(
    st.from_regex(re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}", re.ASCII), fullmatch=True)
    | st.from_regex(r"[ab.-]{1,5}/[ab.-]{1,5}(\.git)?", fullmatch=True)
)
def test_every_name_of_a_hub_is_looked_for_or_refused(name: str) -> None:
    with pytest.raises((InvalidInput, NotFound)):
        read_source(name, local_only=True)


def test_the_user_of_an_endpoint_is_never_shown_stored_or_logged(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr("huggingface_hub.utils._http.logger.propagate", True)
    logging.getLogger("huggingface_hub").propagate = True
    mirror = hub.url.replace("//", "//us%40er:t0k3n@")
    monkeypatch.setattr(constants, "ENDPOINT", mirror)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", mirror + "/{repo_id}/resolve/{revision}/{filename}")
    said = []
    for fault in ({"busy": 99}, {"busy": 0, "cuts": {"model.safetensors": [0] * 20}}, {"gated": {NAME}}):
        for name, value in fault.items():
            monkeypatch.setattr(hub, name, value)
        said.append(call("base-models", "add", NAME, "--store", tmp_path / "yard.db", status=1).output)
    monkeypatch.setattr(hub, "gated", set())
    monkeypatch.setattr(hub, "cuts", {})
    said.append(call("base-models", "add", NAME, "--store", tmp_path / "yard.db").output)
    assert f"of {hub.url}" in said[-1]
    monkeypatch.setattr(constants, "ENDPOINT", "http://us%40er:t0k3n@127.0.0.1:1")
    said.append(call("base-models", "add", "org/other", status=1).output)
    said.append(call("ask", NAME, "hi", "--max-tokens", "3").output)
    said.append(call("base-models", "list", "--json", "--store", tmp_path / "yard.db").output)
    logging.getLogger("huggingface_hub.utils._http").warning("thrown while requesting %s", f"{mirror}/a?key=s3cr3t")
    for logged in (f"GET {hub.url}/api/models/", "Error while downloading", f"requesting {hub.url}/a"):
        assert logged in caplog.text
    everything = "\n".join([*said, caplog.text])
    assert not [line for line in everything.splitlines() if "t0k3n" in line or "er:" in line or "s3cr3t" in line]
    stored = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in stored if b"t0k3n" in path.read_bytes()]


def test_no_error_shows_a_token_or_a_signed_address(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", hub.token)
    faults: list[dict[str, Any]] = [
        {"busy": 99},
        {"cuts": {"model.safetensors": [0] * 20}},
        {"gated": {NAME}},
        {"private": {NAME}},
    ]
    for fault in faults:
        for name, value in fault.items():
            monkeypatch.setattr(hub, name, value)
        monkeypatch.setattr(hub, "token", "another")
        with pytest.raises(ModelyardError) as said:
            of_hub.fetch(NAME)
        assert "s3cr3t" not in str(said.value)
        assert "hf_secret" not in str(said.value)
        assert said.value.__suppress_context__
        monkeypatch.setattr(hub, "busy", 0)


@pytest.mark.parametrize(
    "error",
    [
        *(OSError(number, "no room") for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)),
        RuntimeError("Data processing error: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_told_however_the_library_says_it(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def download(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.setattr(of_hub.huggingface_hub, "hf_hub_download", download)
    with pytest.raises(StorageFull, match="HF_HOME"):
        of_hub.fetch(NAME)


# ---- commands ------------------------------------------------------------------------------------------------------


def test_a_command_adds_a_model_and_says_its_commit(hub: Hub, tmp_path: Path) -> None:
    store = tmp_path / "yard.db"
    said = call("base-models", "add", "--store", store, NAME, "--revision", "main")
    assert f"at commit {COMMIT} of {hub.url}" in said.output
    (row,) = json.loads(call("base-models", "list", "--store", store, "--json").stdout)
    assert (row["id"], row["source"]["revision"]) == (NAME, COMMIT)
    assert call("ask", "--store", store, NAME, "hi", "--max-tokens", "3", "--json").stdout


def test_a_refused_model_leaves_no_store_behind(hub: Hub, tmp_path: Path) -> None:
    store = tmp_path / "yard.db"
    assert "not found" in call("base-models", "add", "--store", store, "org/nothing", status=1).output
    assert not list(tmp_path.glob("yard.db*"))


def test_ask_takes_what_the_machine_has_and_fetches_nothing(hub: Hub, tmp_path: Path) -> None:
    said = call("ask", NAME, "hi", status=1).output
    assert f"modelyard base-models add {NAME}" in said
    assert hub.asked == []
    of_hub.fetch(NAME)
    hub.asked.clear()
    said = call("ask", NAME, "hi", "--max-tokens", "3", "--json")
    assert json.loads(said.stdout)["usage"]["completion_tokens"]
    assert COMMIT in said.stderr
    assert hub.asked == []
    assert not (tmp_path / "yard.db").exists()


def test_serve_takes_what_the_machine_has_and_fetches_nothing(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uvicorn.Server.run", lambda server: setattr(server, "started", True))
    assert f"modelyard base-models add {NAME}" in call("serve", NAME, status=1).output
    of_hub.fetch(NAME)
    hub.asked.clear()
    for _ in range(2):
        call("serve", NAME)
    assert hub.asked == []
    assert [row["id"] for row in json.loads(call("base-models", "list", "--json").stdout)] == [NAME]


def test_serve_names_what_is_in_a_path_as_its_folder_is_named(
    hub: Hub, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uvicorn.Server.run", lambda server: setattr(server, "started", True))
    (tmp_path / "mine").symlink_to(folder)
    for path in (str(folder), "./mine", "./mine"):
        assert f"{path} is served as {folder.name}\n" in call("serve", path).stderr
    assert [row["id"] for row in json.loads(call("base-models", "list", "--json").stdout)] == [folder.name]
    assert "there is no folder or file ./none" in call("serve", "./none", status=1).output


@pytest.mark.slow
def test_the_endpoint_and_the_cache_are_settings_of_the_environment(hub: Hub, tmp_path: Path) -> None:
    own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0", "HF_TOKEN": ""}
    own["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "-m", "modelyard", "base-models", "add", NAME]
    done = subprocess.run(command, env={**os.environ, **own}, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "home").rglob("model.safetensors"))
    assert len(weights_of(hub)) > LARGE


def test_the_lineage_of_a_checkpoint_has_the_commit_of_its_base_model(hub: Hub, folder: Path) -> None:
    with open_platform() as yard:
        yard.add_base_model(NAME, id="mine")
        yard.add_base_model(folder, id="plain")
        for base in ("mine", "plain"):
            yard.models.create(base, project="demo", base_model=base)
        assert yard.models.lineage("demo/mine", 0).base == {"hub_id": NAME, "revision": COMMIT}
        assert yard.models.lineage("demo/plain", 0).base == {}
