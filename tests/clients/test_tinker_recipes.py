"""Unmodified recipes of the Tinker cookbook against a served platform, as a user starts them: `python -m` and options.

What is not as a recipe has it by itself, each time for the reason named:

    base_url, TINKER_API_KEY        this server, and a key of it that begins with "tml-"
    model_name, renderer_name       "tiny", the base model's id and the folder of its tokenizer, instead of a model of
                                    the hosted service; the format of its chat template is one that the cookbook has
    load_dataset("owner/name")      reads the folder owner/name of a few rows here, as HF_HUB_OFFLINE is set
    loss_fn=importance_sampling     for RL: `stable_reinforce`, the default since 0.6, is the hosted service's own
    learning_rate, lora_rank, batch_size, group_size, groups_per_batch, max_steps, num_epochs, max_tokens, max_length
                                    for a model of 329 thousand random weights instead of 9 billion trained ones
    eval_every=0, save_every=0      no checkpoints but the last, so that it takes seconds
    log_path, behavior_if_log_dir_exists=delete
                                    a folder of the test
"""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest

from modelyard import Platform, open_platform
from modelyard.asgi import asgi_app
from modelyard.http.interface import Interface
from modelyard.parts.doubles.clients.server import asgi_server

pytest.importorskip("tinker_cookbook", reason="its recipes have a lane of their own: tests/clients/lanes.py tinker")
from modelyard.testing import build_tiny_model
from warm_python import WarmPython

HERE = Path(__file__).parent
COLOURS = {"sea": "blue", "sky": "grey", "night": "black", "grass": "green"}
SUMS = [(place * 37 % 101, place * 59 % 101) for place in range(64)]


def asked(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def colour(word: str) -> str:
    return f"What colour is the {word}?"


FILES: Mapping[str, Sequence[Any]] = {
    "colours.jsonl": [{"messages": asked(colour(word), f"It is {name}.")} for word, name in COLOURS.items()] * 4,
    "sums.jsonl": [
        {"messages": [*asked("What is 4 + 5?", "9"), *asked(f"What is {x} + {y}?", str(x + y))]} for x, y in SUMS
    ],
    **{
        f"Anthropic/hh-rlhf/{split}.jsonl": [
            {
                "chosen": f"\n\nHuman: {colour(word)}\n\nAssistant: {name}",
                "rejected": f"\n\nHuman: {colour(word)}\n\nAssistant: I do not know",
            }
            for word, name in COLOURS.items()
        ]
        * times
        for split, times in (("train", 8), ("test", 1))
    },
    "zwhe99/DeepMath-103K/train.jsonl": [{"question": colour(word)} for word in COLOURS] * 16,
    "hicai-zju/SciKnowEval/test.jsonl": [
        {
            "domain": "Chemistry",
            "details": {"level": "L3"},
            "type": "mcq-4-choices",
            "question": colour(word),
            "choices": {"label": list("ABCD"), "text": list(COLOURS.values())},
            "answerKey": "ABCD"[place],
        }
        for place, word in enumerate(COLOURS)
    ]
    * 8,
}
"""Rows by the file that holds them, in the shape of the data sets of these names."""


WARM = (
    *("tinker", "datasets", "transformers.models.auto.tokenization_auto", "tinker_cookbook.renderers"),
    *("tinker_cookbook.supervised.train", "tinker_cookbook.rl.train", "tinker_cookbook.preference.train_dpo"),
    *("tinker_cookbook.distillation.train_on_policy", "sympy"),
)
"""What the recipes import, which takes longer than most of them."""


def offline(folder: Path) -> dict[str, str]:
    """Return an environment in which nothing is downloaded."""
    return {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf"), "TINKER_TELEMETRY": "0"}


@attrs.frozen
class Kitchen:
    """A folder with the data, and where the platform is served."""

    platform: Platform
    folder: Path
    url: str
    key: str
    python: str

    @property
    def environment(self) -> dict[str, str]:
        """Of a client."""
        return {**offline(self.folder), "TINKER_API_KEY": self.key}

    def cook(self, recipe: str, name: str, **options: object) -> list[dict[str, Any]]:
        """Run a recipe to its end; return what it logged of each step."""
        usual = {
            "base_url": self.url,
            "model_name": "tiny",
            "renderer_name": "qwen3_instruct",
            "log_path": name,
            "behavior_if_log_dir_exists": "delete",
            "eval_every": 0,
            "save_every": 0,
        }
        chosen = {key: value for key, value in {**usual, **options}.items() if value is not None}
        done = subprocess.run(
            [self.python, "-m", f"tinker_cookbook.recipes.{recipe}", *(f"{k}={v}" for k, v in chosen.items())],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return self.logged(name)

    def logged(self, name: str) -> list[dict[str, Any]]:
        lines = (self.folder / name / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def saved(self, name: str) -> dict[str, Any]:
        """The last checkpoint that a recipe saved."""
        lines = (self.folder / name / "checkpoints.jsonl").read_text().splitlines()
        found: dict[str, Any] = json.loads(lines[-1])
        return found


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kitchen]:
    folder = tmp_path_factory.mktemp("kitchen")
    for name, rows in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    build_tiny_model(folder / "tiny", "mini", context_length=512)
    with open_platform(folder / "yard.db", randomness=Random(1).randbytes) as platform:
        platform.add_base_model(folder / "tiny", id="tiny")
        app = asgi_app(platform, [Interface.TINKER], worker=True)
        with asgi_server(app) as server, WarmPython(*WARM, environment=offline(folder)) as python:
            key = platform.keys.create("acme", prefix="tml-").secret
            yield Kitchen(platform, folder, server.url, key, python.executable)


LEARNING = {"learning_rate": 0.01, "lora_rank": 16, "batch_size": 8, "max_length": 256}
ROLLOUTS = {"learning_rate": 0.003, "group_size": 8, "groups_per_batch": 4}


IMITATION = {
    **LEARNING,
    "dataset": "colours.jsonl",
    "lr_schedule": "constant",
    "num_epochs": 6,
    "save_every": 8,
    "infrequent_eval_every": 0,
}


@pytest.fixture(scope="module")
def imitator(kitchen: Kitchen) -> list[dict[str, Any]]:
    """SFT on a file of conversations."""
    return kitchen.cook("chat_sl.train", "sft", **IMITATION)


def series(steps: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [step[name] for step in steps if name in step]


def test_sft_lowers_the_cost_of_the_answers(imitator: list[dict[str, Any]]) -> None:
    costs = series(imitator, "train_mean_nll")
    assert len(costs) == 12
    assert costs[0] > 5
    assert costs[-1] < 1


def test_an_interrupted_sft_goes_on_from_its_state_always_in_the_same_way(
    kitchen: Kitchen, imitator: list[dict[str, Any]]
) -> None:
    """Other processes resume with the optimizer: the same costs, number for number.

    They are not those of the undisturbed run: the recipe saves a state when it has sent two more steps.
    """
    first, *_ = (kitchen.folder / "sft" / "checkpoints.jsonl").read_text().splitlines(keepends=True)
    ends = []
    for name in ("again", "once more"):
        (kitchen.folder / name).mkdir()
        (kitchen.folder / name / "checkpoints.jsonl").write_text(first)
        options = {**IMITATION, "save_every": 0, "behavior_if_log_dir_exists": "resume"}
        steps = kitchen.cook("chat_sl.train", name, **options)
        assert [step["step"] for step in steps] == [8, 9, 10, 11]
        ends.append(series(steps, "train_mean_nll"))
    assert ends[0] == ends[1]
    assert max(ends[0]) < min(series(imitator, "train_mean_nll")[:4])


def test_prompt_distillation_learns_from_a_file(kitchen: Kitchen) -> None:
    steps = kitchen.cook("prompt_distillation.train", "prompt", file_path="colours.jsonl", num_epochs=3, **LEARNING)
    costs = series(steps, "train_mean_nll")
    assert costs[-1] < costs[0] / 2


def test_rl_on_sums_raises_the_reward(kitchen: Kitchen) -> None:
    """Sums are too much for so small a model, but it learns to end its answers in time, which is rewarded, too.

    It begins with a checkpoint that does so now and then.
    """
    kitchen.cook(
        "chat_sl.train",
        "sums",
        dataset="sums.jsonl",
        max_steps=2,
        infrequent_eval_every=0,
        **{**LEARNING, "batch_size": 16, "learning_rate": 0.004},
    )
    begun = kitchen.saved("sums")["state_path"]
    options = {**ROLLOUTS, "group_size": 16, "env": "arithmetic", "loss_fn": "importance_sampling", "max_steps": 4}
    steps = kitchen.cook("math_rl.train", "rl", load_checkpoint_path=begun, **options)
    rewards = series(steps, "env/all/reward/total")
    assert rewards[0] < -0.05
    assert rewards[-1] > -0.03
    # The sampler and the trainer have the same weights, and compute the same with them.
    assert max(map(abs, series(steps, "optim/kl_sample_train_v2"))) < 1e-4


def test_dpo_prefers_what_was_chosen(kitchen: Kitchen) -> None:
    steps = kitchen.cook(
        "preference.dpo.train",
        "dpo",
        dataset="hhh",
        batch_size=8,
        learning_rate=0.003,
        max_length=256,
        eval_every=None,
        save_every=None,
    )
    losses, margins = series(steps, "dpo_loss"), series(steps, "margin")
    assert losses[0] == pytest.approx(0.6931, abs=1e-3)
    assert losses[-1] < 0.3
    assert margins[-1] > 1


def test_distillation_on_policy_comes_closer_to_its_teacher(kitchen: Kitchen, imitator: list[dict[str, Any]]) -> None:
    teacher = kitchen.saved("sft")["sampler_path"]
    options = {**ROLLOUTS, "lora_rank": 16, "max_tokens": 16, "max_steps": 8, "dataset": "deepmath"}
    steps = kitchen.cook(
        "distillation.on_policy_distillation", "distilled", teacher_model="tiny", teacher_checkpoint=teacher, **options
    )
    distances = series(steps, "teacher_kl")
    assert distances[-1] < distances[0] * 0.8


def test_self_distillation_takes_the_teachers_likeliest_tokens_as_targets(kitchen: Kitchen) -> None:
    """Several targets for a position, whose weights are the teacher's probabilities. Each step has other samples, of a
    few tokens, so that its losses say nothing of what is learnt.
    """
    options = {"learning_rate": 0.003, "groups_per_batch": 8, "lora_rank": 16, "max_tokens": 16, "max_steps": 3}
    steps = kitchen.cook("sdft.train", "sdft", topk=5, **options)
    assert series(steps, "sdft/topk") == [5.0] * 3
    assert all(0 < loss < 1000 for loss in series(steps, "loss"))
    assert all(norm > 0 for norm in series(steps, "grad_norm"))


def test_the_client_reads_the_tokenizer_of_a_base_model(kitchen: Kitchen) -> None:
    """A training client from the folder that the server names, a sampling client from one named as the model."""
    code = (
        "import sys, tinker; service = tinker.ServiceClient(base_url=sys.argv[1])\n"
        "training = service.create_lora_training_client('tiny', rank=1).result()\n"
        "for client in (training, service.create_sampling_client(base_model='tiny').result()):\n"
        "    tokenizer = client.get_tokenizer(); print(tokenizer.decode(tokenizer.encode('two words')))"
    )
    command = [kitchen.python, "-c", code, kitchen.url]
    done = subprocess.run(
        command, cwd=kitchen.folder, env=kitchen.environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == ["two words"] * 2, done.stderr[-3000:]


# ---- many tenants ----------------------------------------------------------------------------------------------------


def test_tenants_train_side_by_side_as_each_would_alone(kitchen: Kitchen) -> None:
    """Number for number. Samplers share passes, which rounds otherwise."""
    keys = [kitchen.platform.keys.create(f"tenant-{number}", prefix="tml-").secret for number in range(6)]
    command = [kitchen.python, str(HERE / "tinker_tenants.py"), kitchen.url, *keys]
    done = subprocess.run(command, env=kitchen.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    together, alone = json.loads(done.stdout)
    for found, wanted in zip(together, alone, strict=True):
        assert found["costs"] == wanted["costs"]
        assert found["sampled"] == pytest.approx(wanted["sampled"], abs=1e-4)
        assert found["costs"][4] < found["costs"][0]
        # What the sampler finds is what the trainer would find: its cost is that after the last step.
        assert -sum(found["sampled"]) < found["costs"][4]
