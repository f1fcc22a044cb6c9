"""The table of training options in the docs is that of the code, and other tools' names are answered with ours."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest

from http_client import client_of
from modelyard import Platform, open_platform
from modelyard.domain.training_config import DistillConfig, DPOConfig, RLConfig, SFTConfig
from modelyard.engines.tabular.trainer import TabularTrainer
from modelyard.errors import InvalidInput, TrainingError
from modelyard.parts.fine_tuning.records import FineTuningRequest
from modelyard.parts.torch.training.options import CONFIGS, DPOKeywords, RLKeywords, SFTKeywords
from modelyard.parts.torch.training.other_names import (
    FIXED,
    NOT_OF_DISTILLATION,
    NOT_OF_DPO,
    NOT_OF_RL,
    OTHER_NAMES,
    hint_of,
)
from modelyard.protocols import TrainContext, TrainItem

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "training.md"
CORE = {"sft": SFTConfig, "dpo": DPOConfig, "rl": RLConfig, "distill": DistillConfig}


def names(config: type) -> set[str]:
    return {field.name for field in attrs.fields(config)}


def table() -> dict[str, list[str]]:
    """The cells of each option, in the table that has a column for each of the other tools."""
    lines = re.findall(r"^\| `(\w+)`(?: †)? \|((?:[^|\n]*\|){5,})$", PAGE.read_text(encoding="utf-8"), re.M)
    return {name: [cell.strip() for cell in cells[:-1].split("|")] for name, cells in lines}


def test_every_option_is_in_the_table() -> None:
    assert set(table()) == names(CONFIGS["sft"]) | names(CONFIGS["dpo"])
    own = {kind: names(config) - names(CORE[kind]) for kind, config in CONFIGS.items()}
    assert {name for name, cells in table().items() if cells[-1] == "local"} == own["sft"] | own["dpo"] | own["rl"]
    starred = set(re.findall(r"^\| `(\w+)` †", PAGE.read_text(encoding="utf-8"), re.M))
    assert starred == own["rl"] | {"learning_rate"}


def test_keywords_are_those_of_the_code() -> None:
    for kind, keywords in (("sft", SFTKeywords), ("dpo", DPOKeywords), ("rl", RLKeywords)):
        assert keywords.__optional_keys__ == names(CONFIGS[kind]) - names(CORE[kind])


def test_other_names_in_the_table_lead_to_ours() -> None:
    known = set(table())
    for ours, cells in table().items():
        for other in {found for cell in cells[2:5] for found in re.findall(r"`(\w+)`", cell)} - known:
            assert hint_of(other, known) in {f"; it is called {name!r} here" for name in (ours, "assistant_turns")}, (
                other
            )


def test_other_names_lead_to_options_that_there_are() -> None:
    every = {*table(), *names(RLConfig), "loss_fn", "samples", "max_tokens"}
    assert set(OTHER_NAMES.values()) <= every
    assert not OTHER_NAMES.keys() & FIXED.keys()
    assert hint_of("weight_decay", every) == "; matrices decay by 0.1"
    assert hint_of("schedul", every) == "; did you mean 'schedule'?"


def test_what_a_method_does_not_have_is_refused_with_the_reason() -> None:
    every = {kind: names(config) for kind, config in CONFIGS.items()}
    assert NOT_OF_DPO.keys() >= every["sft"] - every["dpo"]
    assert NOT_OF_DISTILLATION.keys() >= (every["sft"] | every["dpo"]) - every["distill"]
    assert NOT_OF_RL.keys() >= (every["sft"] | every["dpo"]) - every["rl"]
    assert CONFIGS["rl"].hint("packing", every["rl"]) == f"; {NOT_OF_RL['packing']}"
    assert CONFIGS["rl"].hint("max_seq_length", every["rl"]) == f"; {NOT_OF_RL['max_length']}"
    assert CONFIGS["dpo"].hint("train_on_eos", every["dpo"]) == f"; {NOT_OF_DPO['train_after_end']}"
    assert CONFIGS["rl"].hint("lora_r", every["rl"]) == "; it is called 'lora_rank' here"


def test_what_others_name_and_nothing_here_does_is_not_taken_for_another_option() -> None:
    every = {kind: names(config) for kind, config in CONFIGS.items()}
    for kind, config in CONFIGS.items():
        for name in ("rpo_alpha", "cpo_alpha", "ld_alpha", "delta", "reference_free", "sft_weight"):
            assert config.hint(name, every[kind]), name
            assert "did you mean" not in config.hint(name, every[kind])
    assert "of SFT is added" in CONFIGS["dpo"].hint("rpo_alpha", every["dpo"])
    assert "(sigmoid)" in CONFIGS["dpo"].hint("loss_type", every["dpo"])
    assert "checkpoint that the job starts from" in CONFIGS["dpo"].hint("sync_ref_model", every["dpo"])
    assert "kl_penalty_reference_step" in CONFIGS["rl"].hint("sync_ref_model", every["rl"])
    assert CONFIGS["rl"].hint("clip_ratio", every["rl"]) == "; it is called 'epsilon' here"
    assert "training.loop" in CONFIGS["rl"].hint("num_generations", every["rl"])


# ---- wherever a job is requested -------------------------------------------------------------------------------------

ROW = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}


WRONG: Any = [
    ({"lora_r": 4}, "it is called 'lora_rank' here"),
    ({"rpo_alpha": 1}, "leave it out"),
    ({"schedule": "sine"}, "must be 'constant'"),
]


class Local:
    """Has the options of local base models, and never trains."""

    def methods(self, base_model: str) -> Collection[str]:
        return CONFIGS if base_model == "tabular-mini" else ()

    def train(self, method: str, config: Any, data: Iterable[Any], context: TrainContext) -> Iterator[TrainItem]:
        raise TrainingError("not here")


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform(trainers=[Local()]) as opened:
        opened.models.create("m", project="p", base_model="tabular-mini")
        yield opened


@pytest.mark.parametrize("name", ["lora_r", "num_train_epochs", "per_device_train_batch_size", "max_seq_length"])
def test_python_refuses_another_name_with_ours(name: str, platform: Platform) -> None:
    with pytest.raises(TypeError, match=f"has no option '{name}'; it is called '{OTHER_NAMES[name]}' here"):
        platform.training.submit("sft", "p/m", [ROW], {name: 1})


def test_python_takes_the_options(platform: Platform) -> None:
    with pytest.raises(InvalidInput, match="schedule"):
        platform.training.sft("p/m", [ROW], schedule="sine")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="lora_rank"):
        platform.training.sft("p/m", [ROW], lora_rank="many")  # type: ignore[arg-type]
    job = platform.training.sft("p/m", [ROW], schedule="cosine", lora_rank=4, lora_targets=["q_proj"], seed=5)
    kept = job.refresh().config
    assert (kept["schedule"], kept["lora_rank"], kept["lora_targets"], kept["seed"]) == ("cosine", 4, ("q_proj",), 5)
    loop = platform.training.loop(
        "p/m", [{"prompt": "a", "expected": "b"}], "contains", lora_rank=2, seed=9, warmup_ratio=0.1
    )
    asked = loop.refresh().config["training"]
    assert (asked["lora_rank"], asked["warmup_ratio"]) == (2, 0.1)
    with pytest.raises(TypeError, match="has no option 'epochs'; answers are trained once"):
        platform.training.loop("p/m", [{"prompt": "a"}], "contains", epochs=2)  # type: ignore[call-arg]


class Scheduled(TabularTrainer):
    def methods(self, base_model: str) -> Mapping[str, type]:
        return {kind: CONFIGS[kind] for kind in super().methods(base_model)}


def test_each_round_of_a_loop_is_trained_at_its_rate() -> None:
    with open_platform(trainers=[Scheduled()], randomness=Random(1).randbytes) as platform:
        platform.models.create("m", project="p", base_model="tabular-mini")
        options: Any = {"rounds": 3, "samples": 2, "tasks_per_round": 1, "max_tokens": 2}
        platform.training.loop(
            "p/m", [{"prompt": "a"}], length, learning_rate=3e-6, schedule="linear", **options
        ).wait()
        rounds = [job.config for job in platform.training.list() if job.kind == "rl"]
    assert [round["learning_rate"] for round in rounds] == pytest.approx([3e-6, 2e-6, 1e-6])
    assert {round["schedule"] for round in rounds} == {"constant"}


def length(output: str, row: Mapping[str, Any]) -> float:
    """Reward what another process can import."""
    return len(output)


def test_other_base_models_have_none_of_them() -> None:
    with open_platform() as platform:
        platform.models.create("m", project="p", base_model="tabular-mini")
        with pytest.raises(TypeError, match="has no option 'schedule'"):
            platform.training.sft("p/m", [ROW], schedule="cosine")


def test_http_takes_and_refuses_them_in_the_config(platform: Platform) -> None:
    client = client_of(platform)
    model = client.ok("POST", "/v1/preview/models", {"project": "p", "name": "m", "base_model": "tabular-mini"})
    rows = client.send("POST", "/v1/preview/datasets", raw=json.dumps(ROW).encode(), query="project=p&name=rows")
    body = {"model_id": model["id"], "training_data_url": rows.json["url"]}
    path = "/v1/preview/sft-training-jobs"
    with platform.worker():
        made = client.ok("POST", path, {**body, "config": {"schedule": "linear", "lora_rank": 4, "epochs": 2}})
        assert (made["config"]["schedule"], made["config"]["lora_rank"], made["config"]["epochs"]) == ("linear", 4, 2)
        for config, says in (
            ({"lora_r": 4}, "it is called 'lora_rank' here"),
            ({"schedule": "sine"}, "must be 'constant'"),
        ):
            refused = client.send("POST", path, {**body, "config": config})
            assert (refused.status, refused.locs) == (422, [["body", "config", *config]])
            assert says in refused.json["detail"][0]["msg"]


def test_fine_tuning_takes_and_refuses_them_as_hyperparameters(platform: Platform) -> None:
    content = BytesIO(json.dumps(ROW).encode())
    file = platform.compat.files.create("rows.jsonl", content, purpose="fine-tune", project="p")
    create = platform.compat.fine_tuning.create
    given = {"n_epochs": 2, "schedule": "linear", "lora_rank": 4}
    job = create(FineTuningRequest("tabular-mini", file.id, hyperparameters=given, seed=3), project="p")
    kept = platform.training.get(job.id).config
    assert (kept["epochs"], kept["schedule"], kept["lora_rank"]) == (2, "linear", 4)
    for wrong, says in WRONG:
        with pytest.raises(InvalidInput, match=says) as refused:
            create(FineTuningRequest("tabular-mini", file.id, hyperparameters=wrong), project="p")
        assert refused.value.problems[0].loc == ("hyperparameters", *wrong)
