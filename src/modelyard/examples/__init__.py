"""Data to try modelyard with, in every installation: the answers of an invented support desk.

data = examples.support()
platform.training.sft("desk/support", data.train)
platform.evaluations.run("held-out", "local/desk/support", examples.tasks(data.held_out), "f1")
"""

import json
from pathlib import Path
from typing import Any

import attrs

__all__ = ["SupportData", "support", "tasks"]


@attrs.frozen
class SupportData:
    """Two files in JSON Lines, one conversation a line: system, user and assistant, as `training.sft` takes them.
    `train` holds 292 conversations: 73 answers, each to four phrasings of its question. `held_out` holds a fifth
    phrasing of each question."""

    train: Path
    held_out: Path


def support() -> SupportData:
    """Return the files of the support desk."""
    folder = Path(__file__).parent / "support"
    return SupportData(folder / "train.jsonl", folder / "held_out.jsonl")


def tasks(path: Path) -> list[dict[str, Any]]:
    """Return each conversation as a row of an evaluation: `messages` up to its last answer, and that as `expected`."""
    with path.open(encoding="utf-8") as lines:
        return [_task(json.loads(line)["messages"]) for line in lines]


def _task(messages: list[dict[str, Any]]) -> dict[str, Any]:
    *prompt, answer = messages
    return {"messages": prompt, "expected": answer["content"]}
