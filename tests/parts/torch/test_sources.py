"""GGUF files, and what is not a model: each says what to do."""

import json
import os
import subprocess
import sys
from collections import namedtuple
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from modelyard import open_platform
from modelyard.cli import main
from modelyard.errors import Conflict, InvalidInput, StorageFull
from modelyard.parts.torch import gguf_file, gguf_loading
from modelyard.parts.torch.sources import is_hub_name, read_source
from warm_python import WarmPython

if find_spec("gguf") is not None:
    import gguf

Usage = namedtuple("Usage", "total used free")
MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@pytest.fixture(scope="module")
def llama(folders: Any) -> Path:
    path: Path = folders(architecture="llama")
    return path


@pytest.fixture
def gguf_of(llama: Path, tmp_path: Path) -> Any:
    """A GGUF file of a model in a folder, made as its converters do; `kind` is how its matrices are stored."""
    pytest.importorskip("gguf")

    def write(kind: str = "F32", **more: Any) -> Path:
        path = tmp_path / "models" / "tiny.gguf"
        path.parent.mkdir(exist_ok=True)
        write_gguf(llama, path, kind, more)
        return path

    return write


def write_gguf(folder: Path, path: Path, kind: str, more: dict[str, Any]) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config, writer = model.config, gguf.GGUFWriter(path, "llama")
    _describe(writer, config, folder, more)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in load_file(folder / "model.safetensors").items():
        data = _permuted(name, tensor.float().numpy(), config)
        own = names.get_name(name, try_suffixes=(".weight",))
        if more.get("without") == own:
            continue
        if data.ndim > 1 and kind != "F32":
            stored = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(own, gguf.quantize(data, stored), raw_dtype=stored)
        else:
            writer.add_tensor(own, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: Any, config: Any, folder: Path, more: dict[str, Any]) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(more.get("pre", "default"))
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in MARKS else 1 for token in tokens])
    writer.add_token_scores([0.0] * len(tokens))  # in the place of merges, of which it has none
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    if "template" not in more:
        writer.add_chat_template(tokenizer.chat_template)


def _permuted(name: str, data: Any, config: Any) -> Any:
    """The rows of queries and keys are in another order in these files."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    count = next((heads[part] for part in heads if part in name), None)
    if count is None:
        return data
    return np.ascontiguousarray(
        data.reshape(count, 2, data.shape[0] // count // 2, *data.shape[1:]).swapaxes(1, 2).reshape(data.shape)
    )


def test_a_gguf_file_of_plain_weights_is_the_same_model(gguf_of: Any, llama: Path) -> None:
    path = gguf_of()
    with open_platform() as yard:
        entry = yard.add_base_model(path)
        yard.add_base_model(llama, id="own")
        (one,) = [base for base in yard.base_models() if base.id == "tiny"]
        answers = [
            yard.chat.complete(model=model, messages="Hello, 12", max_tokens=20, temperature=0)
            for model in ("tiny", "own")
        ]
    assert entry.id == "tiny"
    assert answers[0].text == answers[1].text
    assert answers[0].usage.prompt_tokens == answers[1].usage.prompt_tokens
    assert (one.source["file"], one.source["lost"]) == (str(path), "")


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_quantized_weights_are_those_of_the_file_and_the_loss_is_told(gguf_of: Any, llama: Path, kind: str) -> None:
    found = read_source(gguf_of(kind))
    was, made = load_file(llama / "model.safetensors"), load_file(Path(found.folder.path) / "model.safetensors")
    assert {name: tensor.shape for name, tensor in was.items()} == {name: one.shape for name, one in made.items()}
    for name, tensor in was.items():
        stored = gguf.GGMLQuantizationType[kind]
        data = tensor.float().numpy()
        want = gguf.dequantize(gguf.quantize(data, stored), stored) if data.ndim > 1 else data
        assert np.array_equal(made[name].numpy(), want)
    assert f"as {kind}" in found.source["lost"]
    assert found.folder.dtypes == {"F32"}


def test_a_rule_of_splitting_that_is_not_read_is_told(gguf_of: Any) -> None:
    assert "'smollm'" in read_source(gguf_of(pre="smollm")).source["lost"]


def test_a_file_is_read_in_silence(gguf_of: Any, capfd: pytest.CaptureFixture[str]) -> None:
    file = gguf_of("Q8_0")
    capfd.readouterr()
    read_source(file)
    assert capfd.readouterr() == ("", "")


def test_a_file_is_converted_once(gguf_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = gguf_of("Q8_0")
    first = read_source(path)
    monkeypatch.setattr(gguf_loading, "write", None)
    assert read_source(path) == first
    (path.parent / "tiny" / "gguf_source.json").unlink()
    with pytest.raises(Conflict, match="holds something else"):
        read_source(path)


def test_a_link_to_a_file_counts_by_its_own_name_and_place(gguf_of: Any) -> None:
    path = gguf_of()
    blob = path.parent.parent / "blobs" / ("ab" * 32)
    blob.parent.mkdir()
    path.rename(blob)
    path.symlink_to(Path("..") / "blobs" / blob.name)  # as in the cache of a hub
    found = read_source(path)
    assert (found.id, found.folder.path) == ("tiny", str(path.parent / "tiny"))
    assert found.source["file"] == str(path)
    assert [one.name for one in blob.parent.iterdir()] == [blob.name]


@pytest.mark.parametrize(
    ("name", "folder"), [("ab" * 32, "ab" * 32 + "-model"), ("tiny-v1.5", "tiny-v1.5-model"), ("Tiny.GGUF", "Tiny")]
)
def test_the_folder_of_a_file_has_another_name_than_the_file(gguf_of: Any, name: str, folder: str) -> None:
    path = gguf_of()
    found = read_source(path.rename(path.with_name(name)))
    assert (found.id, found.folder.path) == (folder, str(path.parent / folder))


NEIGHBOURS = [
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "tokenizer.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "adapter_config.json",
    "processor_config.json",
    "chat_template.jinja",
    "model.safetensors",
]
FOREIGN = {
    "auto_map": dict.fromkeys(("AutoConfig", "AutoTokenizer", "AutoModelForCausalLM", "AutoProcessor"), "code.Own"),
    "tokenizer_class": "OwnTokenizer",
    "architectures": ["OwnModel"],
    "chat_template": "of another",
    "base_model_name_or_path": "org/other",
    "bos_token": "<other>",
    "max_new_tokens": 7,
}


def test_nothing_beside_a_file_is_read_and_no_code_is_run(gguf_of: Any) -> None:
    path = gguf_of()
    alone = read_source(path.rename(path.parent.parent / path.name)).folder
    crowded = gguf_of()
    for name in NEIGHBOURS:
        (crowded.parent / name).write_text(json.dumps(FOREIGN))
    ran = crowded.parent / "ran"
    (crowded.parent / "code.py").write_text(f"open({str(ran)!r}, 'w')")
    found = read_source(crowded).folder
    assert dict(found.files) == dict(alone.files)
    assert not ran.exists()


def test_what_cannot_be_converted_leaves_nothing(gguf_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = gguf_of()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidInput, match=r"tiny\.gguf"):
        read_source(path)
    path.write_bytes(whole)
    monkeypatch.setattr(gguf_file.shutil, "disk_usage", lambda path: Usage(9, 8, 1))
    monkeypatch.setattr(gguf_loading, "write", None)
    with pytest.raises(StorageFull, match=r"tiny\.gguf need [\d,]{6,} bytes in .*, where 1 are free"):
        read_source(path)
    assert [one.name for one in path.parent.iterdir()] == ["tiny.gguf"]


CONVERT = """
import resource, sys
from transformers import PreTrainedModel
from modelyard.errors import StorageFull
from modelyard.parts.torch.sources import read_source

def limit():
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))  # only the files that Rust writes are larger

def saved(*words, save=PreTrainedModel.save_pretrained):
    save(*words)
    limit()

if sys.argv[2] == "weights":
    limit()
else:
    PreTrainedModel.save_pretrained = saved
try:
    read_source(sys.argv[1])
except StorageFull as full:
    print(full)
"""


@pytest.mark.skipif(os.name == "nt", reason="files have no limit there")
@pytest.mark.parametrize("fails", ["weights", "tokenizer"])
def test_a_disk_that_fills_up_while_the_folder_is_written_is_said(
    gguf_of: Any, fails: str, warm_python: WarmPython
) -> None:
    path = gguf_of()
    own = {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [warm_python.executable, "-c", CONVERT, str(path), fails]
    done = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True, check=False)
    assert "tiny.gguf needs more room as a folder" in done.stdout, done.stderr
    assert [one.name for one in path.parent.iterdir()] == ["tiny.gguf"]


@pytest.mark.parametrize(
    ("more", "says"), [({"template": None}, "no chat template"), ({"without": "blk.0.ffn_up.weight"}, "ffn_up|up_proj")]
)
def test_a_file_that_lacks_something_is_refused(gguf_of: Any, more: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        read_source(gguf_of(**more))


# ---- other kinds of paths ------------------------------------------------------------------------------------------

KINDS = [
    ("nothing", "there is no folder or file nothing; give a folder .* org/name"),
    ("./org/name", "there is no folder or file"),
    ("here/nothing", "there is no folder or file here/nothing"),
    ("missing.gguf", "there is no folder or file"),
    ("https://huggingface.co/org/name/tree/main", "give its name: org/name"),
    ("hf://org/name", "give its name: org/name"),
    ("s3://bucket/model", "fetch it first"),
    ("model.safetensors", "give the folder that it is in"),
    ("config.json", "give the folder that it is in"),
    ("pytorch_model.bin", "pickled"),
    ("model.tar.gz", "unpack it"),
    ("notes.txt", "is not a model; give a folder"),
    ("pointer.gguf", "git lfs pull"),
    ("files", r"give the path of one, such as files.x\.gguf"),
    ("adapter", "holds an adapter; add its base model"),
    ("models--org--name", "hub's cache; give models--org--name.snapshots.abc"),
    ("several", "holds folders of models; give one, such as several.one"),
    ("here", r"config\.json: is missing"),
]


@pytest.fixture
def _kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (
        "model.safetensors",
        "config.json",
        "pytorch_model.bin",
        "model.tar.gz",
        "notes.txt",
        "pointer.gguf",
        "files/x.gguf",
        "adapter/adapter_config.json",
        "models--org--name/snapshots/abc/config.json",
        "several/one/config.json",
        "here/other.txt",
    ):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("version https://git-lfs.github.com/spec/v1")


@pytest.mark.usefixtures("_kinds")
@pytest.mark.parametrize(("path", "says"), KINDS)
def test_a_wrong_kind_of_path_says_what_to_do_and_asks_no_hub(path: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=says):
        read_source(path)
    said = CliRunner().invoke(main, ["base-models", "add", path])
    assert said.exit_code == 1
    assert not list(tmp_path.glob("yard.db*"))


@pytest.mark.usefixtures("_kinds")
def test_a_revision_is_only_of_a_model_of_a_hub(folder: Path) -> None:
    with pytest.raises(InvalidInput, match="revision: is of a model of a hub"):
        read_source(folder, "main")


@pytest.mark.parametrize("name", ["org/name", "a-b.c/D_9", "Qwen/Qwen3-8B"])
def test_names_of_a_hub(name: str) -> None:
    assert is_hub_name(name)


@pytest.mark.parametrize(
    "name", ["name", "/a/b", "a/b/c", "./a", "a/..", "a/b.gguf", "a//b", "ä/b", "a b/c", Path("a/b")]
)
def test_what_is_no_name_of_a_hub(name: Any) -> None:
    assert not is_hub_name(name)


@pytest.mark.parametrize("words", [("",), ("org/name", "--revision", ""), ("org/name", "--id", " ")])
def test_what_is_empty_is_refused_before_anything_is_asked(words: tuple[str, ...]) -> None:
    said = CliRunner().invoke(main, ["base-models", "add", *words])
    assert said.exit_code == 2
    assert "is empty" in said.output
