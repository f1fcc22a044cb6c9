"""Trains in processes forked from this one, which is started with a socket for `MODEL FOLDER` (`executors.forks`).

Each saved state is written to FOLDER and named on standard output with its step; at the end the checkpoint is. A state
that lies there already is gone on from. After each step the process waits for a line on standard input.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from training_kit import TINY, base_of, groups_of_words

from modelyard.domain.training_config import RLConfig
from modelyard.executors.forks import serve_forks
from modelyard.protocols import SavedState, Step, Trained, TrainItem
from modelyard.testing.trainer import context_of
from modelyard.trainers.local.trainer import LocalTrainer


def saved(folder: Path) -> tuple[int, dict[str, bytes]] | None:
    states = sorted(folder.glob("state-*"))
    if not states:
        return None
    return int(states[-1].name.removeprefix("state-")), {path.name: path.read_bytes() for path in states[-1].iterdir()}


def write(folder: Path, files: object) -> None:
    folder.mkdir()
    for name, chunks in dict(files).items():  # type: ignore[call-overload]
        (folder / name).write_bytes(b"".join(chunks))


def begun(model: Path, resume: tuple[int, dict[str, bytes]] | None) -> Iterator[TrainItem]:
    """An RL job of eight steps, with everything that a job may remember."""
    trainer = LocalTrainer([base_of(model)], device="cpu", save_every=3)
    config = RLConfig(learning_rate=1e-3, packed_sequence_length=1, kl_penalty_coef=0.1, precalculate_logprobs=True)
    return trainer.rl(config, groups_of_words(4), context_of(TINY, resume=resume))


def main(model: str, place: str) -> None:
    folder = Path(place)
    items = begun(Path(model), saved(folder))
    for item in items:
        if isinstance(item, SavedState):
            write(folder / f"state-{item.number:03d}", item.files)
        elif isinstance(item, Trained):
            write(folder / "checkpoint", item.files)
        elif isinstance(item, Step):
            print(json.dumps([item.number, dict(item.metrics)]), flush=True)
            if not sys.stdin.readline():
                return


if __name__ == "__main__":
    if words := serve_forks(["transformers.modeling_utils"]):
        main(*words)
        sys.stdout.flush()
    os._exit(0)  # to take all modules down again would cost seconds
