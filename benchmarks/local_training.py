"""Training a local model beside a plain torch loop and TRL's, as JSON: python benchmarks/local_training.py. CPU, one
thread.

The loop is what one would write by hand: the same network and adapter, the same batches already as tensors, the loss of
transformers over all logits, clipping, torch's AdamW. Steps are taken in turns, and a ratio above 1 says that ours are
faster. `job` is a whole job, from loading the network to the bytes of the checkpoint, its rows tokenized twice.
`shared passes` are gradients of several runs of the training interface, each in its own pass and all in one.

The trainer of TRL, where that is installed (it is compared only), gets the same network, adapter and rows, its batches
collated outside of what is measured. Its trainers of RL sample by themselves, so their steps compare with nothing here.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import torch

from modelyard.domain.completion import Message, Role, TokenLogprob
from modelyard.domain.training import Example, History, SampledChoice, Trajectory, TrajectoryGroup
from modelyard.domain.training_config import RLConfig, SFTConfig
from modelyard.domain.training_run import AdapterConfig, TargetRow
from modelyard.parts.torch.lora import LoraShape
from modelyard.parts.torch.model_folder import read_base_folder
from modelyard.parts.torch.network import Network
from modelyard.parts.torch.records import BaseModel, Tuning
from modelyard.parts.torch.tiny_model import build_tiny_model
from modelyard.parts.torch.training.examples import TokenRow
from modelyard.parts.torch.training.learner import MAX_GRAD_NORM, LocalLearner
from modelyard.parts.torch.training.row_learner import BETAS, WEIGHT_DECAY
from modelyard.parts.torch.training.trainable import attach_adapter
from modelyard.parts.torch.training.trainer import LocalTrainer
from modelyard.protocols import TrainContext, Trained
from modelyard.trainers import Loss, Objective, token_objective
from modelyard.trainers.credits import Credit
from modelyard.trainers.losses import TrainedSequence, policy_loss, supervised_loss

try:
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import SFTConfig as TrlConfig
    from trl import SFTTrainer
except ImportError:
    SFTTrainer = None

ROUNDS = 15
SHAPES = {"50 short rows": (50, 12, 20), "8 long rows": (8, 120, 400), "4 prompts x 8 samples": (32, 40, 16)}
"""Rows, letters of the question, letters of the answer."""

SHARED = ((4, 1, 32), (4, 2, 32), (8, 1, 16))
"""Runs, rows of each, tokens of a row."""

Step = Callable[[], float]


def base_of(folder: Path, tuning: Tuning = Tuning.LORA) -> BaseModel:
    return read_base_folder(folder).base_model("mini", "mini", tuning, datetime.now(UTC), {})


def examples(rows: int, requested: int, reply: int) -> list[Example]:
    letters = "abcdefghijklmnopqrstuvwxyz "
    texts = [(letters * 40)[number : number + 1000] for number in range(rows)]
    return [Example((Message(Role.USER, text[:requested]), Message(Role.ASSISTANT, text[-reply:]))) for text in texts]


def context() -> TrainContext:
    return TrainContext("mini", 0, frozenset(), lambda name: (_ for _ in ()).throw(KeyError(name)))


# ---- the loop by hand ----------------------------------------------------------------------------------------------


class Plain:
    """What one would write by hand."""

    def __init__(self, folder: Path, rows: Sequence[TokenRow]) -> None:
        self.model: Any = Network(folder).model
        self.parameters = attach_adapter(self.model, LoraShape(), 0, "mini").parameters
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-4, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True)
        longest = max(len(row.ids) for row in rows)
        self.ids = torch.tensor([[*row.ids, *[0] * (longest - len(row.ids))] for row in rows])
        self.labels = torch.full_like(self.ids, -100)
        for number, row in enumerate(rows):
            self.labels[number, list(row.places)] = self.ids[number, list(row.places)]

    def imitate(self) -> float:
        return self._descend(self.model(input_ids=self.ids, labels=self.labels, use_cache=False).loss)

    def reinforce(self, old: torch.Tensor, advantages: torch.Tensor) -> float:
        """CISPO over all positions, masked."""
        logprobs = self.model(input_ids=self.ids, use_cache=False).logits[:, :-1].float().log_softmax(-1)
        targets = self.labels[:, 1:]
        trained = targets >= 0
        new = logprobs.gather(2, targets.clamp(min=0)[..., None])[..., 0]
        ratio = (new - old).clamp(-20, 20).exp().clamp(0, 5).detach()
        return self._descend(-(ratio * advantages[:, None] * new)[trained].sum() / trained.sum())

    def _descend(self, loss: torch.Tensor) -> float:
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, MAX_GRAD_NORM)
        self.optimizer.step()
        return loss.item()


# ---- TRL -----------------------------------------------------------------------------------------------------------


def with_trl(folder: Path, rows: Sequence[TokenRow], steps: dict[str, Step]) -> dict[str, float]:
    """The median CPU milliseconds of TRL's steps, and of the others, taken in turns with them."""
    spent: dict[str, list[float]] = {name: [] for name in ("TRL", *steps)}

    class Turns(TrainerCallback):
        """Lets the others make their step after each of TRL's."""

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.begun = time.process_time_ns()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            spent["TRL"].append((time.process_time_ns() - self.begun) / 1e6)
            for name, step in steps.items():
                spent[name].append(timed(step))

    model: Any = Network(folder).model
    attach_adapter(model, LoraShape(), 0, "mini")
    config = TrlConfig(
        output_dir=str(folder.with_name("trl")),
        per_device_train_batch_size=len(rows),
        max_steps=ROUNDS,
        learning_rate=1e-4,
        lr_scheduler_type="constant",
        optim="adamw_torch_fused",
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        weight_decay=WEIGHT_DECAY,
        max_grad_norm=MAX_GRAD_NORM,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        max_length=None,
        completion_only_loss=True,
    )
    masks = [[int(place in set(row.places)) for place in range(len(row.ids))] for row in rows]
    data = [{"input_ids": list(row.ids), "completion_mask": mask} for row, mask in zip(rows, masks, strict=True)]
    SFTTrainer(
        model,
        args=config,
        train_dataset=Dataset.from_list(data),
        processing_class=AutoTokenizer.from_pretrained(folder),
        callbacks=[Turns()],
    ).train()
    return {name: statistics.median(found) for name, found in spent.items()}


# ---- in turns ------------------------------------------------------------------------------------------------------


def timed(step: Step) -> float:
    """CPU milliseconds."""
    begun = time.process_time_ns()
    step()
    return (time.process_time_ns() - begun) / 1e6


def in_turns(steps: dict[str, Step]) -> dict[str, float]:
    """The median CPU milliseconds of each."""
    spent: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            spent[name].append(timed(step))
    return {name: statistics.median(found) for name, found in spent.items()}


def compared(found: dict[str, float], tokens: int) -> dict[str, float]:
    others = {name: spent for name, spent in found.items() if name != "ours"}
    return {
        **{f"{name}, CPU ms a step": round(spent, 2) for name, spent in found.items()},
        "ours, tokens a second": round(tokens / found["ours"] * 1000),
        **{f"{name} / ours": round(spent / found["ours"], 3) for name, spent in others.items()},
    }


def imitation(folder: Path, learner: LocalLearner, data: Sequence[Example]) -> dict[str, float]:
    rows = [row for example in data for row in learner.sft_turns(example, "all")]
    plain, objective = Plain(folder, rows), Objective(supervised_loss, linear=True)
    steps = {"ours": lambda: learner.step(rows, objective, 1e-4, 1)["loss"], "by hand": plain.imitate}
    found = in_turns(steps) if SFTTrainer is None else with_trl(folder, rows, steps)
    return compared(found, sum(len(row.ids) for row in rows))


def reinforcement(folder: Path, learner: LocalLearner, data: Sequence[Example]) -> dict[str, float]:
    rows = [row for example in data for row in learner.sft_turns(example, "all")]
    advantages = [(-1.0) ** number for number in range(len(rows))]
    plain = Plain(folder, rows)
    with torch.no_grad():
        table = plain.model(input_ids=plain.ids).logits[:, :-1].log_softmax(-1)
        old = table.gather(2, plain.ids[:, 1:, None])[..., 0]
    known = [[old[number, place - 1].item() for place in row.places] for number, row in enumerate(rows)]
    config = RLConfig()

    def loss(new: Sequence[Sequence[float]]) -> Loss:
        parts = zip(new, known, advantages, strict=True)
        return policy_loss(
            [TrainedSequence(credit=Credit(0, 0, worth, 1.0), new=one, old=before) for one, before, worth in parts],
            config,
        )

    worth = torch.tensor(advantages)
    steps = {
        "ours": lambda: learner.step(rows, Objective(loss), 1e-4, 1)["loss"],
        "by hand": lambda: plain.reinforce(old, worth),
    }
    return compared(in_turns(steps), sum(len(row.ids) for row in rows))


# ---- runs that share passes ------------------------------------------------------------------------------------------


def shared_passes(base: BaseModel, runs: int, rows: int, length: int) -> float:
    """The CPU time of separate passes over that of a shared one: the median of pairs, taken in turns."""
    trainer = LocalTrainer([base], device="cpu")
    opened = [trainer.open_run(base.id, AdapterConfig(rank=2**number), frozenset(), _no_file) for number in range(runs)]
    given = [TargetRow([5 + place % 200 for place in range(length)], [7] * length)] * rows
    objective = token_objective("cross_entropy", {}, given, [{"weights": [1.0] * length}] * rows)
    shared = trainer._bases._bases[base.id]

    def separate() -> float:
        return sum(run.accumulate(given, objective)[1].value for run in opened)

    def together() -> float:
        with shared._turns.one():
            asked = [pool.submit(run.accumulate, given, objective) for run in opened]
            while len(shared._waiting) < runs:
                time.sleep(0.001)
        return sum(one.result()[1].value for one in asked)

    with ThreadPoolExecutor(runs) as pool:
        assert abs(separate() - together()) < 1e-3
        pairs = [timed(separate) / timed(together) for _ in range(ROUNDS)]
    for run in opened:
        run.close()
    return round(statistics.median(pairs), 3)


def _no_file(name: str) -> BinaryIO:
    raise KeyError(name)


# ---- whole jobs ----------------------------------------------------------------------------------------------------


def job(base: BaseModel, data: Sequence[Example]) -> dict[str, float]:
    """Where the CPU seconds of a job go."""
    trainer, begun = LocalTrainer([base], device="cpu"), time.process_time()
    items = trainer.train("sft", SFTConfig(batch_size=len(data)), list(data) * 10, context())
    next(items)
    started = time.process_time()
    for item in items:
        if isinstance(item, Trained):
            size = sum(len(chunk) for chunks in item.files.values() for chunk in chunks)
    ended = time.process_time()
    return {
        "start, s": round(started - begun, 3),
        "ten steps and the checkpoint, s": round(ended - started, 3),
        "checkpoint, bytes": size,
    }


def rl_job(base: BaseModel) -> float:
    """CPU seconds of a job of one step: 4 groups of 8 answers of 16 tokens."""
    question, ids = Message(Role.USER, "q" * 40), tuple(range(10, 26))
    logprobs = tuple(TokenLogprob("?", -5.0) for _ in ids)
    choice = SampledChoice(Message(Role.ASSISTANT, "?"), logprobs=logprobs, token_ids=ids)
    group = TrajectoryGroup(tuple(Trajectory((History((question, choice)),), number % 2) for number in range(8)))
    begun = time.process_time()
    list(LocalTrainer([base], device="cpu").train("rl", RLConfig(), [group] * 4, context()))
    return round(time.process_time() - begun, 3)


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = build_tiny_model(Path(scratch) / "mini", "mini")
        base = base_of(folder)
        with LocalTrainer([base], device="cpu")._base_learner(context(), copies=0) as (learner, _):
            data = {name: examples(*shape) for name, shape in SHAPES.items()}
            report = {
                "SFT step": {name: imitation(folder, learner, rows) for name, rows in data.items()},
                "RL step": {name: reinforcement(folder, learner, rows) for name, rows in data.items()},
            }
        shapes = {f"{runs} runs of {rows} x {length} tokens": (runs, rows, length) for runs, rows, length in SHARED}
        report["shared passes"] = {name: shared_passes(base, *shape) for name, shape in shapes.items()}
        report["job"] = {"SFT, 50 short rows": job(base, data["50 short rows"]), "RL, one step, s": rl_job(base)}
    left_out = {} if SFTTrainer else {"left out": "TRL, which is not installed"}
    print(json.dumps({"torch": torch.__version__, **left_out, **report}, indent=2))


if __name__ == "__main__":
    main()
