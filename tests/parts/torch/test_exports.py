"""Checkpoints taken elsewhere as folders: what peft and transformers load answers as this platform does, and comes
back as it was.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from click.testing import CliRunner
from families import OWN_LOGITS, SERVED, build_family
from peft import AutoPeftModelForCausalLM, LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from modelyard import Message, NotWorse, Platform, Role, Tuning, open_platform
from modelyard.cli import main
from modelyard.domain.identity import Principal, Scope
from modelyard.domain.models import Model
from modelyard.errors import BackendError, Conflict, Forbidden, InvalidInput, NotFound, StorageFull
from modelyard.parts.torch.exports import merging, written_whole
from modelyard.parts.torch.exports.stored_weights import Layout
from modelyard.parts.torch.exports.taken import take
from modelyard.parts.torch.exports.weight_files import write_weights
from modelyard.parts.torch.lora import LoraShape
from modelyard.parts.torch.training.trainer import LocalTrainer

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft asks for it

ASKED = "How many?"
BOUND = 1e-4
"""Of a log-probability in 32-bit floats, between another library's answer and this platform's."""


def rows(count: int = 4) -> list[dict[str, Any]]:
    asked = {"role": "user", "content": ASKED}
    return [{"messages": [asked, {"role": "assistant", "content": f"{number} or more"}]} for number in range(count)]


def trained(platform: Platform, base: str, name: str = "counter", **options: Any) -> Model:
    model = platform.models.create(name, project="demo", base_model=base)
    platform.training.sft(model, rows(), learning_rate=1e-2, **options).wait()
    return model


@pytest.fixture(params=["qwen3", "llama"])
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def yard(folders: Any, architecture: str) -> Iterator[Platform]:
    with open_platform() as platform:
        platform.add_base_model(folders(architecture=architecture), id="tiny")
        yield platform


@pytest.fixture
def one(folder: Path) -> Iterator[Platform]:
    """A platform with one architecture, for what is the same in all."""
    with open_platform() as platform:
        platform.add_base_model(folder, id="tiny")
        yield platform


def answered_here(platform: Platform, model: str) -> tuple[str, list[float]]:
    answer = platform.chat.complete(
        model=model, messages=ASKED, project="demo", max_tokens=12, temperature=0, logprobs=True
    ).choices[0]
    assert answer.logprobs is not None
    return answer.message.text, [one.logprob for one in answer.logprobs]


def answered_there(network: Any, folder: Path) -> tuple[str, list[float]]:
    """What transformers answers, and the log-probabilities of a whole pass."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": ASKED}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    start = asked["input_ids"].shape[1]
    ids = network.generate(**asked, max_new_tokens=12, do_sample=False)
    with torch.no_grad():
        scores = network(ids).logits[0].float().log_softmax(-1)
    said = ids[0, start:].tolist()
    return tokenizer.decode(said, skip_special_tokens=True), [
        float(scores[start - 1 + place, token]) for place, token in enumerate(said)
    ]


def assert_same_answer(found: tuple[str, list[float]], want: tuple[str, list[float]], bound: float = BOUND) -> None:
    assert found[0] == want[0]
    assert found[1][: len(want[1])] == pytest.approx(want[1], abs=bound)


def call(*words: object, status: int = 0) -> Any:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == status, (result.output, result.exception)
    return result


# ---- an adapter ----------------------------------------------------------------------------------------------------


def test_peft_loads_an_exported_adapter_as_it_is(yard: Platform, tmp_path: Path) -> None:
    yard.models.export(trained(yard, "tiny"), tmp_path / "adapter")
    network = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter").eval()
    assert_same_answer(answered_there(network, tmp_path / "adapter"), answered_here(yard, "local/demo/counter:step1"))
    assert {"README.md", "tokenizer.json", "chat_template.jinja"} <= {*os.listdir(tmp_path / "adapter")}


def test_an_adapter_names_its_base_as_the_hub_does(one: Platform, tmp_path: Path) -> None:
    model = trained(one, "tiny")
    taken = take(one._runtime, one._principal, model, None, None)
    source = {"hub_id": "org/tiny", "revision": "a" * 40, "endpoint": "https://hub"}
    _as_of_hub(one, source)
    one.models.export(model, tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_bytes())
    assert (config["base_model_name_or_path"], config["revision"]) == ("org/tiny", "a" * 40)
    assert taken.base.path not in (tmp_path / "adapter" / "README.md").read_text()


def _as_of_hub(platform: Platform, source: dict[str, str]) -> None:
    from modelyard.parts.torch.service import base_models_of

    known = base_models_of(platform._runtime)
    assert known is not None
    known[:] = [attrs.evolve(base, source=source) for base in known]


def test_an_adapter_that_comes_back_is_the_same_checkpoint(yard: Platform, tmp_path: Path) -> None:
    model = trained(yard, "tiny")
    yard.models.export(model, tmp_path / "adapter")
    back = yard.models.import_adapter(tmp_path / "adapter", "again", project="demo")
    assert back.digest == yard.models.checkpoint(model, 1).digest
    assert answered_here(yard, "local/demo/again:step1") == answered_here(yard, "local/demo/counter:step1")
    assert yard.models.import_adapter(tmp_path / "adapter", "demo/again").step == 2


@pytest.mark.parametrize("name", ["other/new", "local/other/new"])
def test_an_adapter_comes_to_a_new_model_by_its_full_name(name: str, yard: Platform, tmp_path: Path) -> None:
    yard.models.export(trained(yard, "tiny"), tmp_path / "adapter")
    for wrong in ("other/new:step1", "other/new:prod"):
        with pytest.raises(NotFound):
            yard.models.import_adapter(tmp_path / "adapter", wrong)
    with pytest.raises(InvalidInput, match="project: is 'other' by the model's name"):
        yard.models.import_adapter(tmp_path / "adapter", name, project="demo")
    with pytest.raises(InvalidInput, match="entity: is 'local' by the model's name"):
        yard.models.import_adapter(tmp_path / "adapter", name, entity="acme")
    assert yard.models.import_adapter(tmp_path / "adapter", name).step == 1
    assert (yard.models.get("other/new").project, yard.models.get("other/new").last_step) == ("other", 1)


def test_an_adapter_that_peft_made_answers_as_there_and_is_trained_on(yard: Platform, tmp_path: Path) -> None:
    base = next(iter(yard.base_models())).path
    network = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base), LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "up_proj"])
    )
    with torch.no_grad():
        for name, weights in network.named_parameters():
            if "lora_B" in name:
                weights.normal_(generator=torch.Generator().manual_seed(len(name)))
    network.save_pretrained(tmp_path / "made")
    found = yard.models.import_adapter(tmp_path / "made", "theirs", project="demo")
    assert_same_answer(answered_there(network.eval(), Path(base)), answered_here(yard, "local/demo/theirs:step1"))
    assert yard.models.lineage("demo/theirs", found.step).job_id is None


@pytest.mark.parametrize(
    ("change", "at"),
    [
        ({"use_dora": True}, "adapter_config"),
        ({"peft_type": "IA3"}, "adapter_config"),
        ({"r": 2}, "adapter_model"),
    ],
    ids=["dora", "kind", "rank"],
)
def test_an_adapter_that_does_not_fit_is_refused(
    one: Platform, tmp_path: Path, change: dict[str, Any], at: str
) -> None:
    one.models.export(trained(one, "tiny"), tmp_path / "adapter")
    path = tmp_path / "adapter" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | change))
    with pytest.raises(InvalidInput, match=at):
        one.models.import_adapter(tmp_path / "adapter", "again", project="demo")
    assert one.models.find("again", project="demo") is None


def test_an_adapter_of_an_unknown_base_or_without_files_is_refused(one: Platform, tmp_path: Path) -> None:
    one.models.export(trained(one, "tiny"), tmp_path / "adapter")
    with pytest.raises(NotFound, match="tiny"):
        one.models.import_adapter(tmp_path / "adapter", "again", project="demo", base_model="other")
    (tmp_path / "adapter" / "adapter_model.safetensors").write_bytes(b"no")
    with pytest.raises(InvalidInput, match="adapter_model"):
        one.models.import_adapter(tmp_path / "adapter", "again", project="demo")
    with pytest.raises(InvalidInput, match="adapter_config"):
        one.models.import_adapter(tmp_path, "again", project="demo")


# ---- merged --------------------------------------------------------------------------------------------------------


def test_a_merged_folder_answers_as_the_adapter_does(yard: Platform, tmp_path: Path) -> None:
    yard.models.export(trained(yard, "tiny"), tmp_path / "merged", merged=True)
    want = answered_here(yard, "local/demo/counter:step1")
    network = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    assert_same_answer(answered_there(network, tmp_path / "merged"), want)
    yard.add_base_model(tmp_path / "merged", id="merged")
    assert_same_answer(answered_here(yard, "merged"), want)


def test_merged_weights_are_those_that_peft_merges(yard: Platform, tmp_path: Path) -> None:
    model = trained(yard, "tiny")
    yard.models.export(model, tmp_path / "adapter")
    yard.models.export(model, tmp_path / "merged", merged=True)
    peft = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter").merge_and_unload()
    found = load_file(tmp_path / "merged" / "model.safetensors")
    for name, weights in peft.state_dict().items():
        if name in found:
            torch.testing.assert_close(found[name], weights, atol=1e-6, rtol=1e-6)


def test_the_untouched_base_comes_out_as_it_is(one: Platform, folder: Path, tmp_path: Path) -> None:
    one.models.create("counter", project="demo", base_model="tiny")
    one.models.export("demo/counter", tmp_path / "merged", merged=True)
    want, found = (load_file(place / "model.safetensors") for place in (folder, tmp_path / "merged"))
    assert want.keys() == found.keys()
    assert all(torch.equal(want[name], found[name]) for name in want)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (folder / name).read_bytes() == (tmp_path / "merged" / name).read_bytes()


def test_all_trained_weights_are_written_as_they_are(folder: Path, tmp_path: Path) -> None:
    with open_platform() as yard:
        yard.add_base_model(folder, id="tiny", tuning=Tuning.FULL)
        model = trained(yard, "tiny")
        yard.models.export(model, tmp_path / "merged", merged=True)
        with yard.models.open_file(model, 1, "model.safetensors") as file:
            (tmp_path / "kept.safetensors").write_bytes(file.read())
        yard.add_base_model(tmp_path / "merged", id="merged")
        assert answered_here(yard, "merged") == answered_here(yard, "local/demo/counter:step1")
        with pytest.raises(InvalidInput, match="merged"):
            yard.models.export(model, tmp_path / "adapter")
    found, want = load_file(tmp_path / "merged" / "model.safetensors"), load_file(tmp_path / "kept.safetensors")
    assert all(torch.equal(found[name], want[name]) for name in found)


def test_an_adapter_of_a_shared_head_gets_a_head_of_its_own(folder: Path, tmp_path: Path) -> None:
    with open_platform() as yard:
        yard.add_base_model(folder, id="tiny")
        base = list(yard.base_models())
    shape = LoraShape(4, 8, ("lm_head", "q_proj"))
    with open_platform(trainers=[LocalTrainer(base, shape=shape)]) as yard:
        yard.add_base_model(folder, id="tiny")
        yard.models.export(trained(yard, "tiny"), tmp_path / "merged", merged=True)
        want = answered_here(yard, "local/demo/counter:step1")
    network = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    assert network.lm_head.weight is not network.model.embed_tokens.weight
    assert_same_answer(answered_there(network, tmp_path / "merged"), want)


def test_merged_weights_take_another_type_if_asked(one: Platform, tmp_path: Path) -> None:
    model = trained(one, "tiny")
    one.models.export(model, tmp_path / "narrow", merged=True, dtype="bfloat16")
    one.models.export(model, tmp_path / "wide", merged=True)
    narrow, wide = (load_file(tmp_path / name / "model.safetensors") for name in ("narrow", "wide"))
    assert all(torch.equal(narrow[name], wide[name].bfloat16()) for name in wide)
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "narrow").dtype is torch.bfloat16
    one.add_base_model(tmp_path / "narrow", id="narrow")
    network = AutoModelForCausalLM.from_pretrained(tmp_path / "narrow", dtype=torch.float32).eval()
    assert_same_answer(answered_there(network, tmp_path / "narrow"), answered_here(one, "narrow"))


def test_numbers_that_a_type_does_not_hold_are_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "large")
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][0] = 1e6
    save_file(weights, tmp_path / "large" / "model.safetensors", {"format": "pt"})
    with open_platform() as yard:
        yard.add_base_model(tmp_path / "large", id="large")
        yard.models.create("counter", project="demo", base_model="large")
        with pytest.raises(InvalidInput, match=r"model\.norm\.weight.*float16"):
            yard.models.export("demo/counter", tmp_path / "merged", merged=True, dtype="float16")
    assert os.listdir(tmp_path) == ["large"]


def test_weights_come_in_shards_with_an_index(folder: Path, tmp_path: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    shutil.copytree(folder, tmp_path / "sharded")
    (tmp_path / "sharded" / "model.safetensors").unlink()
    forms = {name: (one.dtype, tuple(one.shape)) for name, one in weights.items()}
    asked: list[str] = []
    write_weights(tmp_path / "sharded", forms, lambda name: asked.append(name) or weights[name], shard=100_000)
    assert len(list((tmp_path / "sharded").glob("model-*-of-*.safetensors"))) > 1
    assert sorted(asked) == sorted(weights)
    with open_platform() as yard:
        yard.add_base_model(tmp_path / "sharded", id="sharded")
        yard.models.create("counter", project="demo", base_model="sharded")
        yard.models.export("demo/counter", tmp_path / "merged", merged=True)
    found = load_file(tmp_path / "merged" / "model.safetensors")
    assert all(torch.equal(found[name], weights[name]) for name in weights)


FAMILIES = dict([*OWN_LOGITS, *reversed(SERVED)])


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_merged_as_it_is_served(family: str, folder: Path, tmp_path: Path) -> None:
    """GPT-2 stores its layers transposed, and some are square: their shapes do not tell."""
    (tmp_path / "base").mkdir()
    base, _ = build_family(folder, tmp_path / "base", family, FAMILIES[family])
    with open_platform() as yard:
        yard.add_base_model(base, id="base")
        yard.models.import_adapter(
            random_adapter(base, tmp_path / "adapter"), "tuned", project="demo", base_model="base"
        )
        yard.models.export("demo/tuned", tmp_path / "merged", merged=True)
        want = answered_here(yard, "local/demo/tuned:step1")
        assert want != answered_here(yard, "base")
    network = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    assert_same_answer(answered_there(network, tmp_path / "merged"), want)


def random_adapter(base: Path, folder: Path) -> Path:
    """An adapter of all usual layers, as peft saves it, large enough to change what is answered."""
    layout, drawn = Layout(base), torch.Generator().manual_seed(1)
    shape = LoraShape(4, 8).resolve(layout._model)
    layers = [name for name in layout.layers if name.rpartition(".")[2] in shape.targets]
    weights = {
        name: torch.randn(size, generator=drawn) * 0.3 for name, size in layout.adapter_shapes(layers, 4).items()
    }
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_bytes(shape.config("elsewhere"))
    return folder


def test_layers_that_are_stored_in_another_form_are_refused_by_name(
    one: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = trained(one, "tiny")
    monkeypatch.setattr(Layout, "stored_as", lambda *_: None)
    with pytest.raises(InvalidInput, match=r"Qwen3ForCausalLM stores .*q_proj|Qwen3ForCausalLM stores .*proj"):
        one.models.export(model, tmp_path / "merged", merged=True)
    assert os.listdir(tmp_path) == []


# ---- whole or not at all -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [{}, {"merged": True}], ids=["adapter", "merged"])
def test_a_cut_leaves_nothing(
    one: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: dict[str, Any]
) -> None:
    model = trained(one, "tiny")

    def cut(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(written_whole, "_sync", cut)
        with pytest.raises(KeyboardInterrupt):
            one.models.export(model, tmp_path / "out", **form)
    assert os.listdir(tmp_path) == []


def test_what_a_killed_process_leaves_is_not_a_model(
    one: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The configuration comes last, so no half-written folder loads."""
    model = trained(one, "tiny")
    seen: list[set[str]] = []
    plain = merging.MergedWeights.tensor

    def watched(self: Any, name: str) -> Any:
        seen.append({path.name for place in tmp_path.iterdir() for path in place.iterdir()})
        assert not (tmp_path / "out").exists()
        return plain(self, name)

    monkeypatch.setattr(merging.MergedWeights, "tensor", watched)
    one.models.export(model, tmp_path / "out", merged=True)
    assert seen
    assert not any("config.json" in names for names in seen)


def test_a_full_disk_is_said(one: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = trained(one, "tiny")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(written_whole, "_sync", full)
    with pytest.raises(StorageFull, match="make room"):
        one.models.export(model, tmp_path / "out")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("form", [{}, {"merged": True}, {"gguf": "f16"}, {"gguf": "q8_0"}], ids=str)
def test_an_export_tells_what_is_written_up_to_the_last_byte(one: Platform, form: Any, tmp_path: Path) -> None:
    if "gguf" in form:
        pytest.importorskip("gguf")
    model, told = trained(one, "tiny"), list[tuple[int, int]]()
    one.models.export(model, tmp_path / "out", **form, progress=lambda *both: told.append(both))
    files = [path for path in (tmp_path / "out", *(tmp_path / "out").glob("*.safetensors")) if path.is_file()]
    (total,) = {total for _, total in told}
    assert told == sorted(told)
    assert told[-1][0] == total
    assert 0.5 < total / files[0].stat().st_size <= 1
    assert len(told) > 1 or not form


def test_nothing_is_written_over(one: Platform, tmp_path: Path) -> None:
    model = trained(one, "tiny")
    (tmp_path / "out").mkdir()
    for form in ({}, {"merged": True}, {"gguf": "f16"}):
        with pytest.raises(Conflict, match="there already"):
            one.models.export(model, tmp_path / "out", **form)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="there is no folder"):
        one.models.export(model, tmp_path / "no" / "out")


def test_only_one_writer_gets_a_place(one: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody is faster: what they wrote stays, and nothing of this one."""
    model = trained(one, "tiny")
    plain = written_whole._sync

    def slow(folder: Path) -> None:
        plain(folder)
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "theirs").touch()

    monkeypatch.setattr(written_whole, "_sync", slow)
    with pytest.raises(Conflict):
        one.models.export(model, tmp_path / "out")
    assert [*os.walk(tmp_path)][1:] == [(str(tmp_path / "out"), [], ["theirs"])]


def test_what_is_asked_must_fit_together(one: Platform, tmp_path: Path) -> None:
    model = trained(one, "tiny")
    one.models.promote(model, 1)
    one.models.export(model, tmp_path / "prod", alias="prod")
    with pytest.raises(InvalidInput, match="choose one"):
        one.models.export(model, tmp_path / "out", merged=True, gguf="f16")
    with pytest.raises(InvalidInput, match="dtype"):
        one.models.export(model, tmp_path / "out", dtype="float16")
    with pytest.raises(InvalidInput, match="float8"):
        one.models.export(model, tmp_path / "out", merged=True, dtype="float8")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="alias"):
        one.models.export(model, tmp_path / "out", alias="prod", step=1)
    with pytest.raises(NotFound):
        one.models.export(model, tmp_path / "out", alias="none")
    with pytest.raises(InvalidInput, match="step 0"):
        one.models.export(model, tmp_path / "out", step=0)
    with pytest.raises(InvalidInput, match="ftp"):
        one.models.export(model, "ftp://host/out")


def test_what_is_not_trained_here_is_refused(tmp_path: Path) -> None:
    with open_platform() as yard:
        yard.models.create("counter", project="demo", base_model="tabular-mini")
        with pytest.raises(InvalidInput, match="tabular-mini"):
            yard.models.export("demo/counter", tmp_path / "out")


def test_a_base_model_that_has_changed_is_not_merged(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "base")
    with open_platform() as yard:
        yard.add_base_model(tmp_path / "base", id="tiny")
        model = trained(yard, "tiny")
        (tmp_path / "base" / "config.json").write_text("{}")
        with pytest.raises(BackendError, match="put back"):
            yard.models.export(model, tmp_path / "out", merged=True)


def test_only_the_host_exports_and_imports(one: Platform) -> None:
    tenant = one.acting_as(Principal("somebody", "acme", Scope("acme")))
    for name in ("export", "push", "import_adapter"):
        with pytest.raises(Forbidden):
            getattr(tenant.models, name)


# ---- the card ------------------------------------------------------------------------------------------------------


def test_the_card_says_what_is_known_and_nothing_of_the_machine(one: Platform, tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    _as_of_hub(one, {"hub_id": "org/tiny", "revision": "a" * 40, "endpoint": "https://user:pass@hub"})
    model = trained(one, "tiny")
    one.training.sft(model, rows(6), learning_rate=1e-2, epochs=2).wait()
    exam = [{"prompt": f"{ASKED} {number}", "expected": "1"} for number in range(6)]
    for step in (1, 2):
        one.evaluations.run("exam", f"local/demo/counter:step{step}", exam, "token_f1", project="demo", max_tokens=3)
    one.models.promote(model, 1)
    one.models.promote(model, 2, require=NotWorse("exam"))
    one.models.export(model, tmp_path / "out", license="apache-2.0")
    card = (tmp_path / "out" / "README.md").read_text()
    front, body = re.fullmatch(r"---\n(.*?)\n---\n(.*)", card, re.DOTALL).groups()  # type: ignore[union-attr]
    found = yaml.safe_load(front)
    assert found["base_model"] == "org/tiny"
    assert (found["base_model_relation"], found["license"], found["library_name"]) == ("adapter", "apache-2.0", "peft")
    assert found["tags"] == ["modelyard", "lora", "sft"]
    (result,) = found["model-index"][0]["results"]
    assert result["dataset"]["name"] == "exam"
    low, high = result["metrics"][0]["args"]["confidence_interval"]
    assert low <= result["metrics"][0]["value"] <= high
    job = one.models.lineage(model, 2)
    assert job.data_digest is not None
    for said in ("Rows: 6", "`epochs`: 2", job.data_digest, "not worse", "at revision `" + "a" * 40, f"{low:.4g} to"):
        assert said in body
    assert "* Adapter: rank 16, alpha 32\n" in body
    assert "beside" not in body
    for secret in (str(tmp_path), next(iter(one.base_models())).path, "user:pass", os.uname().nodename):
        assert re.search(rf"(?<!\w){re.escape(secret)}(?!\w)", card) is None, secret


@pytest.mark.parametrize("weights", ["int8", "bfloat16"])
def test_the_card_says_beside_which_weights_an_adapter_has_learned(one: Platform, weights: str, tmp_path: Path) -> None:
    one.add_base_model(next(iter(one.base_models())).path, id="narrow", weights=weights)  # type: ignore[arg-type]
    one.models.export(trained(one, "narrow"), tmp_path / "out")
    assert f"* Trained and evaluated beside {weights} weights\n" in (tmp_path / "out" / "README.md").read_text()


def test_the_card_leaves_out_what_is_not_known(one: Platform, tmp_path: Path) -> None:
    one.models.create("counter", project="demo", base_model="tiny")
    one.models.export("demo/counter", tmp_path / "out", merged=True)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "license" not in card
    assert "base_model" not in card
    assert "##" not in card
    assert "None" not in card


# ---- the command line ----------------------------------------------------------------------------------------------


def test_the_commands_write_and_read(folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "yard.db"
    with open_platform(store) as yard:
        yard.add_base_model(folder, id="tiny")
        trained(yard, "tiny")
    at = ("--store", store)
    assert "wrote" in call("models", "export", "demo/counter", "--to", tmp_path / "adapter", *at).output
    written = call("models", "export", "demo/counter", "--to", tmp_path / "merged", "--merged", "--step", 1, *at).output
    assert written.startswith(f"writing {tmp_path / 'merged'}")
    assert (tmp_path / "merged" / "model.safetensors").is_file()
    said = call("models", "import", tmp_path / "adapter", "again", "--project", "demo", *at).output
    assert "step 1" in said
    assert (
        "there already" in call("models", "export", "demo/counter", "--to", tmp_path / "merged", *at, status=1).output
    )
    with open_platform(store) as yard:
        asked = [Message(Role.USER, ASKED)]
        assert yard.chat.complete(model="local/demo/again:step1", messages=asked, project="demo", max_tokens=2)
