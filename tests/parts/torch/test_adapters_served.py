"""Adapters side by side in one batch: each answers as if it were alone, peft reads ours and we read peft's."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from local_models import END, SHAPE, adapter_weights, answered, engine_of, prompts, requested
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from modelyard.domain.completion import Sampling
from modelyard.errors import BackendError
from modelyard.parts.torch.lora import CONFIG_FILE, WEIGHTS_FILE, LoraShape, read_tensors
from modelyard.parts.torch.serving.batching_engine import Engine

# What peft itself asks of transformers.
pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")


@pytest.fixture
def engine(folder: Path) -> Engine:
    made = engine_of(folder)
    for slot in range(1, 5):
        made.load(slot, SHAPE, adapter_weights(folder, SHAPE, seed=slot))
    return made


def logits(engine: Engine, prompt: list[int], slot: int) -> torch.Tensor:
    """Of the first token after the prompt, no matter what else is running."""
    found: list[torch.Tensor] = []
    plain = engine._network.logits

    def keeping(hidden: torch.Tensor) -> torch.Tensor:
        found.append(plain(hidden))
        return found[-1].clone()

    engine._network.logits = keeping  # type: ignore[method-assign]
    try:
        answered(engine, requested(prompt, 1, slot=slot))
    finally:
        engine._network.logits = plain  # type: ignore[method-assign]
    return found[0][-1]


def test_four_adapters_and_the_base_mixed_answer_as_each_alone(folder: Path, engine: Engine) -> None:
    wanted = [(prompt, place % 5) for place, prompt in enumerate(prompts(20))]
    mixed = answered(engine, *(requested(prompt, 8, Sampling(seed=1), slot=slot) for prompt, slot in wanted))
    for (prompt, slot), found in zip(wanted, mixed, strict=True):
        separate = engine_of(folder)
        if slot:
            separate.load(slot, SHAPE, adapter_weights(folder, SHAPE, seed=slot))
        assert answered(separate, requested(prompt, 8, Sampling(seed=1), slot=slot)) == [found]
    assert len({tuple(answered(engine, requested([5, 6, 7], 8, slot=slot))[0]) for slot in range(5)}) == 5


@pytest.mark.parametrize("running", [True, False])
def test_a_prompt_is_never_taken_over_from_another_adapter(folder: Path, engine: Engine, running: bool) -> None:
    """Neither from an answer that is under way nor from one that was kept."""
    prompt = [*range(10, 90)]
    for slot in range(5):
        other = requested(prompt, 50, slot=(slot + 1) % 5)
        engine.submit(other)
        engine.wait(other, 2 if running else 50)
        separate = engine_of(folder)
        if slot:
            separate.load(slot, SHAPE, adapter_weights(folder, SHAPE, seed=slot))
        assert torch.allclose(logits(engine, prompt, slot), logits(separate, prompt, slot), atol=1e-4)
        engine.cancel(other)


def test_an_adapter_loaded_under_load_disturbs_no_other_request(folder: Path, engine: Engine) -> None:
    running = requested([5, 6, 7], 300, Sampling(seed=2), slot=1)
    engine.submit(running)
    engine.wait(running, 5)
    reader = threading.Thread(target=engine.wait, args=(running, 300))
    reader.start()
    for seed in range(10, 16):
        weights = adapter_weights(folder, SHAPE, seed=seed)
        engine.load(2, SHAPE, weights)
        fresh = engine_of(folder)
        fresh.load(2, SHAPE, weights)
        assert answered(engine, requested([8, 9], 5, slot=2)) == answered(fresh, requested([8, 9], 5, slot=2))
    reader.join(60)
    separate = engine_of(folder)
    separate.load(1, SHAPE, adapter_weights(folder, SHAPE, seed=1))
    assert answered(separate, requested([5, 6, 7], 300, Sampling(seed=2), slot=1)) == [running.answer]


# ---- files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
def test_peft_loads_our_folder_and_gives_the_same_logits(
    folders: Callable[..., Path], tmp_path: Path, architecture: str
) -> None:
    folder = folders(architecture=architecture)
    weights = adapter_weights(folder, SHAPE, seed=3)
    (tmp_path / CONFIG_FILE).write_bytes(SHAPE.config("tiny"))
    save_file(weights, tmp_path / WEIGHTS_FILE)
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), tmp_path)
    ours = engine_of(folder)
    ours.load(1, SHAPE, weights)
    for prompt in prompts(4):
        with torch.no_grad():
            expected = theirs(torch.tensor([prompt])).logits[0, -1]
        assert torch.allclose(logits(ours, prompt, 1), expected, atol=1e-4)
        assert not torch.allclose(logits(ours, prompt, 0), expected, atol=1e-1)


def test_we_load_the_folder_of_peft_and_give_the_same_logits(folder: Path, tmp_path: Path) -> None:
    config = LoraConfig(r=3, lora_alpha=12, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
    torch.manual_seed(0)
    theirs: Any = get_peft_model(AutoModelForCausalLM.from_pretrained(folder), config)
    for name, parameter in theirs.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    theirs.save_pretrained(tmp_path, save_embedding_layers=False)
    shape = LoraShape.from_config((tmp_path / CONFIG_FILE).read_bytes())
    assert (shape.rank, shape.alpha, shape.targets) == (3, 12, ("down_proj", "q_proj"))
    ours = engine_of(folder)
    with (tmp_path / WEIGHTS_FILE).open("rb") as file:
        ours.load(2, shape, read_tensors(file))
    for prompt in prompts(4):
        with torch.no_grad():
            expected = theirs(torch.tensor([prompt])).logits[0, -1]
        assert torch.allclose(logits(ours, prompt, 2), expected, atol=1e-4)


def test_a_slot_keeps_nothing_of_the_adapter_before(folder: Path) -> None:
    engine = engine_of(folder)
    narrow = LoraShape(rank=2, alpha=4, targets=("q_proj",))
    alone = engine_of(folder)
    alone.load(2, SHAPE, adapter_weights(folder, SHAPE, seed=1))  # so that both banks are as wide
    alone.load(1, narrow, adapter_weights(folder, narrow, seed=9))
    engine.load(1, SHAPE, adapter_weights(folder, SHAPE, seed=1))
    engine.load(1, narrow, adapter_weights(folder, narrow, seed=9))
    assert torch.equal(logits(engine, [5, 6, 7], 1), logits(alone, [5, 6, 7], 1))


def test_the_configuration_is_the_same_bytes_and_reads_back() -> None:
    assert SHAPE.config("tiny") == SHAPE.config("tiny")
    assert LoraShape.from_config(SHAPE.config("tiny")) == SHAPE


ODD = [
    ({"use_dora": True}, "use_dora"),
    ({"use_rslora": True}, "use_rslora"),
    ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
    ({"alpha_pattern": {"q_proj": 99}}, "alpha_pattern"),
    ({"rank_pattern": {"q_proj": 1}}, "rank_pattern"),
    ({"bias": "all"}, "biases"),
    ({"peft_type": "IA3"}, "peft_type"),
    ({"r": 0}, "r and lora_alpha"),
    ({"lora_alpha": 0.5}, "whole numbers"),
    ({"r": None}, "not the configuration"),
    ({"target_modules": None}, "not the configuration"),
]


@pytest.mark.parametrize(("change", "reported"), ODD)
def test_a_configuration_that_would_be_served_wrongly_is_refused(change: dict[str, Any], reported: str) -> None:
    fields = {**json.loads(SHAPE.config("tiny")), **change}
    with pytest.raises(BackendError, match=reported):
        LoraShape.from_config(json.dumps(fields).encode())


def test_what_is_not_json_is_refused() -> None:
    for text in (b"", b"[]", b"{", b"\xff"):
        with pytest.raises(BackendError, match="not the configuration"):
            LoraShape.from_config(text)


def test_an_adapter_of_another_base_or_too_large_is_refused(folders: Callable[..., Path], folder: Path) -> None:
    engine = engine_of(folder, rank=4)
    with pytest.raises(BackendError, match="trained on another base model"):
        engine.load(1, SHAPE, adapter_weights(folders("nano"), SHAPE, seed=1))
    with pytest.raises(BackendError, match="takes up to 4"):
        engine.load(1, LoraShape(rank=5, alpha=5), {})
    with pytest.raises(BackendError, match="does not have"):
        engine.load(1, SHAPE, {"base_model.model.other.lora_A.weight": torch.zeros(4, 64)})
    engine.load(1, SHAPE, adapter_weights(folder, SHAPE, seed=1))
    assert answered(engine, requested([5], 2, slot=1))[0][-1] != END


def test_what_is_not_a_safetensors_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"\x80\x04pickled")
    with path.open("rb") as file, pytest.raises(ValueError, match="not a safetensors file"):
        read_tensors(file)
