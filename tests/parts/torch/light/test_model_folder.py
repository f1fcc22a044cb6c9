"""A folder is taken only when all of it can be served; what is wrong is said with the file at fault."""

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from modelyard.errors import BackendError, InvalidInput
from modelyard.parts.torch import model_config
from modelyard.parts.torch.model_folder import MAX_JSON, check_unchanged, read_base_folder
from modelyard.parts.torch.records import BaseModel, Tuning


@pytest.fixture
def changed(base_folder: Path) -> Callable[..., Path]:
    """The folder with some entries of its configuration changed, left out where None."""

    def change(**entries: Any) -> Path:
        config = {**json.loads((base_folder / "config.json").read_text()), **entries}
        config = {name: value for name, value in config.items() if value is not None}
        (base_folder / "config.json").write_text(json.dumps(config))
        return base_folder

    return change


def test_what_a_folder_says(base_folder: Path) -> None:
    read = read_base_folder(base_folder)
    assert (read.architecture, read.context_length, read.vocabulary_size) == ("Qwen3ForCausalLM", 128, 7)
    assert (read.parameters, read.dtypes, read.tool_format) == (12, {"F32"}, "tags")
    assert sorted(read.files) == ["chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"]
    assert Path(read.path).is_absolute()


def added(folder: Path, at: datetime) -> BaseModel:
    return read_base_folder(folder).base_model("tiny", "Tiny", Tuning.LORA, at, {})


def test_a_change_of_any_file_is_noticed(base_folder: Path) -> None:
    base = added(base_folder, datetime.now(UTC))
    check_unchanged(base)
    (base_folder / "chat_template.jinja").write_text("other")
    (base_folder / "tokenizer.json").unlink()
    with pytest.raises(BackendError, match=r"'tiny' is not as it was .* \(chat_template\.jinja, tokenizer\.json\)"):
        check_unchanged(base)


def test_weights_are_read_again_only_when_they_were_written_since(base_folder: Path) -> None:
    """Which their times show: what is changed without another time is believed."""
    weights = base_folder / "model.safetensors"
    base = added(base_folder, datetime.fromtimestamp(1000, UTC))
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    os.utime(weights, (999, 999))
    check_unchanged(base)
    os.utime(weights, (1000, 1000))
    with pytest.raises(BackendError, match=r"model\.safetensors"):
        check_unchanged(base)
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    check_unchanged(base)


def test_progress_is_reported_up_to_the_last_byte(base_folder: Path) -> None:
    reported: list[tuple[int, int]] = []
    read_base_folder(base_folder, lambda *done: reported.append(done))
    assert reported == sorted(reported)
    assert reported[-1][0] == reported[-1][1] == sum(path.stat().st_size for path in base_folder.iterdir())


def test_weights_may_lie_in_several_files_and_the_template_with_the_tokenizer(base_folder: Path) -> None:
    whole, template = base_folder / "model.safetensors", base_folder / "chat_template.jinja"
    for part in ("a.safetensors", "b.safetensors"):
        (base_folder / part).write_bytes(whole.read_bytes())
    whole.unlink()
    weight_map = {"x": "a.safetensors", "y": "b.safetensors"}
    (base_folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (base_folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template.read_text()}))
    template.unlink()
    read = read_base_folder(base_folder)
    assert (read.parameters, read.tool_format) == (24, "tags")
    assert {"a.safetensors", "b.safetensors", "tokenizer_config.json"} <= read.files.keys()


# ---- refused -----------------------------------------------------------------------------------------------------

CONFIGS = [
    ({"architectures": None}, "must name one class"),
    ({"architectures": ["A", "B"]}, "must name one class"),
    ({"architectures": ["BertForMaskedLM"]}, "only causal language models"),
    ({"model_type": None}, "must say model_type"),
    ({"model_type": ["qwen3"]}, "must say model_type"),
    ({"auto_map": {"AutoModel": "code.Model"}}, "auto_map"),
    ({"vocab_size": True}, "vocab_size"),
    ({"vocab_size": 0}, "vocab_size"),
    ({"type_vocab_size": 2}, "sees what comes after"),
    ({"decoder_layers": 2}, "answers an encoder"),
    ({"architectures": ["XLMWithLMHeadModel"]}, r"classes named \.\.\.ForCausalLM"),
    ({"rope_scaling": {"type": "su"}}, "now calls 'longrope'"),
    ({"quantization_config": {"quant_method": "awq"}}, "quantized weights"),
    ({"rope_scaling": {"type": "longrope"}}, "original_max_position_embeddings"),
    ({"rope_parameters": "longrope"}, "must be an object"),
]


def test_a_size_that_neither_the_configuration_nor_an_installed_family_says_is_refused(
    changed: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_config, "find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match="max_position_embeddings"):
        read_base_folder(changed(max_position_embeddings=None))


@pytest.mark.parametrize(("entries", "reported"), CONFIGS)
def test_a_model_that_would_be_served_wrongly_or_not_at_all_is_refused(
    changed: Callable[..., Path], entries: dict[str, Any], reported: str
) -> None:
    with pytest.raises(InvalidInput, match=reported) as refused:
        read_base_folder(changed(**entries))
    assert refused.value.problems[0].loc == ("path", "config.json")


HARMLESS = [
    {"quantization_config": None, "type_vocab_size": None},
    {"sliding_window": 64},
    {"layer_types": ["full_attention", "linear_attention"], "final_logit_softcapping": 30.0},
    {"architectures": ["GPT2LMHeadModel"]},
    {"max_position_embeddings": 128, "n_positions": 64},
]


@pytest.mark.parametrize("entries", HARMLESS)
def test_any_causal_model_with_plain_weights_is_accepted(changed: Callable[..., Path], entries: dict[str, Any]) -> None:
    assert read_base_folder(changed(**entries)).context_length == 128


def test_the_context_is_found_by_the_names_that_older_families_have_for_it(changed: Callable[..., Path]) -> None:
    folder = changed(n_positions=64)
    config = folder / "config.json"
    fields = json.loads(config.read_text())
    del fields["max_position_embeddings"]
    config.write_text(json.dumps(fields))
    assert read_base_folder(folder).context_length == 64


LONG = {"rope_type": "longrope", "original_max_position_embeddings": 64}
ROPES = [
    ({"rope_parameters": LONG}, 64),
    ({"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 32}, 32),
    ({"rope_parameters": {"full_attention": LONG, "sliding_attention": {"rope_type": "default"}}}, 64),
    ({"rope_parameters": {**LONG, "rope_type": "yarn"}}, 128),
    ({"rope_scaling": None, "original_max_position_embeddings": 32}, 128),
]


@pytest.mark.parametrize(("entries", "length"), ROPES)
def test_a_context_ends_where_longer_sequences_would_change_what_was_read(
    changed: Callable[..., Path], entries: dict[str, Any], length: int
) -> None:
    assert read_base_folder(changed(**entries)).context_length == length


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"])
def test_a_missing_file_is_named(base_folder: Path, name: str) -> None:
    (base_folder / name).unlink()
    with pytest.raises(InvalidInput, match="is missing") as refused:
        read_base_folder(base_folder)
    assert refused.value.problems[0].loc == ("path", name)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b"[" * 10**5])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_what_is_not_a_json_object_is_refused(base_folder: Path, name: str, text: bytes) -> None:
    (base_folder / name).write_bytes(text)
    with pytest.raises(InvalidInput, match=r"is not JSON|must be an object"):
        read_base_folder(base_folder)


def test_a_template_that_says_nothing_is_none(base_folder: Path) -> None:
    (base_folder / "chat_template.jinja").write_text("\n")
    with pytest.raises(InvalidInput, match="is missing or empty"):
        read_base_folder(base_folder)


TAGS = "{% if tools %}<tool_call>{% endif %}"


@pytest.mark.parametrize(
    ("templates", "form"),
    [
        ([{"name": "default", "template": "x"}, {"name": "tool_use", "template": TAGS}], "tags"),
        ([{"name": "tool_use", "template": "x"}, {"name": "default", "template": TAGS}], ""),
        ([{"name": "default", "template": TAGS}, {"name": "rag", "template": "x"}], "tags"),
        (TAGS, "tags"),
    ],
)
def test_named_templates_are_read_and_that_for_tools_says_how_tools_are_called(
    base_folder: Path, templates: Any, form: str
) -> None:
    (base_folder / "chat_template.jinja").unlink()
    (base_folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    assert read_base_folder(base_folder).tool_format == form


def test_templates_in_files_of_their_own_are_read_and_watched(base_folder: Path) -> None:
    (base_folder / "chat_template.jinja").write_text("x")
    more = base_folder / "additional_chat_templates"
    more.mkdir()
    (more / "tool_use.jinja").write_text(TAGS)
    base = added(base_folder, datetime.now(UTC))
    assert base.tool_format == "tags"
    (more / "tool_use.jinja").write_text("other")
    with pytest.raises(BackendError, match=r"additional_chat_templates.tool_use\.jinja"):
        check_unchanged(base)


@pytest.mark.parametrize(
    "templates", [[], [{"name": "tool_use", "template": TAGS}], [{"name": "default", "template": 5}], ["x"], {"a": "b"}]
)
def test_templates_without_a_default_one_are_refused(base_folder: Path, templates: Any) -> None:
    (base_folder / "chat_template.jinja").unlink()
    (base_folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    with pytest.raises(InvalidInput, match="several without a 'default'"):
        read_base_folder(base_folder)


def test_a_tokenizer_that_wants_code_to_be_run_is_refused(base_folder: Path) -> None:
    (base_folder / "tokenizer_config.json").write_text(
        json.dumps({"auto_map": {"AutoTokenizer": ["code.Words", None]}})
    )
    with pytest.raises(InvalidInput, match="auto_map"):
        read_base_folder(base_folder)


def test_pickled_weights_are_never_read(base_folder: Path) -> None:
    (base_folder / "model.safetensors").rename(base_folder / "pytorch_model.bin")
    with pytest.raises(InvalidInput, match=r"pytorch_model\.bin is pickled and never read"):
        read_base_folder(base_folder)


def test_weights_that_are_not_safetensors_are_refused(base_folder: Path) -> None:
    (base_folder / "model.safetensors").write_bytes(b"\x80\x04pickled under another name")
    with pytest.raises(InvalidInput) as refused:
        read_base_folder(base_folder)
    assert refused.value.problems[0].loc == ("path", "model.safetensors")


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "code.py", "missing.safetensors"])
def test_an_index_never_leads_out_of_its_folder(base_folder: Path, name: str) -> None:
    (base_folder / "model.safetensors").rename(base_folder.parent / "outside.safetensors")
    (base_folder / "code.py").touch()
    (base_folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": name}}))
    with pytest.raises(InvalidInput, match="not a safetensors file of this folder"):
        read_base_folder(base_folder)


def test_a_file_that_is_far_too_large_is_not_read(base_folder: Path) -> None:
    with (base_folder / "tokenizer.json").open("wb") as file:
        file.truncate(MAX_JSON + 1)
    with pytest.raises(InvalidInput, match="is larger than"):
        read_base_folder(base_folder)


def test_what_is_not_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is not a folder"):
        read_base_folder(tmp_path / "nothing")
