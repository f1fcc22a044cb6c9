"""Training through the platform: what was trained is what answers, by an adapter and in full."""

from pathlib import Path

import pytest
from training_kit import micro

from modelyard import open_platform
from modelyard.errors import JobFailed
from modelyard.parts.torch.records import Tuning
from modelyard.parts.torch.tiny_model import build_tiny_model

PAIRS = {"sea": "blue", "grass": "green", "night": "black", "snow": "white"}
ROWS = [
    {"messages": [{"role": "user", "content": requested}, {"role": "assistant", "content": generated}]}
    for requested, generated in PAIRS.items()
]


@pytest.mark.parametrize(("tuning", "rate", "passes"), [(Tuning.LORA, 1e-2, 60), (Tuning.FULL, 4e-3, 30)])
def test_each_step_of_a_model_says_what_it_was_taught(tuning: Tuning, rate: float, passes: int) -> None:
    with open_platform() as platform:
        platform.add_base_model(micro(), id="base", tuning=tuning)
        model = platform.models.create("m", project="p", base_model="base")

        def says(step: int, requested: str) -> str:
            name = f"local/p/m:step{step}"
            answer = platform.chat.complete(model=name, messages=requested, project="p", temperature=0, max_tokens=8)
            return answer.text

        platform.training.sft(model, ROWS * passes, batch_size=4, learning_rate=rate).wait()
        assert {requested: says(1, requested) for requested in PAIRS} == PAIRS
        assert {requested: says(0, requested) for requested in PAIRS} != PAIRS
        platform.training.sft(model, ROWS, learning_rate=1e-9).wait()
        assert {requested: says(2, requested) for requested in PAIRS} == PAIRS


def test_a_job_that_cannot_be_trained_fails_in_words_and_leaves_the_model_at_its_parent(tmp_path: Path) -> None:
    folder = build_tiny_model(tmp_path / "m", "nano")
    with open_platform() as platform:
        platform.add_base_model(folder, id="base")
        model = platform.models.create("m", project="p", base_model="base")
        with pytest.raises(JobFailed, match=r"diverged at step \d+: .* try a learning rate far below"):
            platform.training.sft(model, ROWS * 4, learning_rate=1e30).wait()
        assert platform.models.get("p/m").last_step == 0
