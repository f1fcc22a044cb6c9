"""The body that creates a loop."""

from collections.abc import Mapping
from typing import Any

import attrs

from modelyard.formats.constraints import ID, Length
from modelyard.http.body_schemas import NeedsBody
from modelyard.http.training.schemas import RATE, OptionsBody, fields_of
from modelyard.parts.loops.config import LoopOptions

_COUNT = {"schema": {"minimum": 1}}
_BOUNDS: Mapping[str, Mapping[str, Any]] = {
    "rounds": _COUNT,
    "samples": {"schema": {"minimum": 2, "maximum": 128}},
    "tasks_per_round": _COUNT,
    "temperature": {"schema": {"minimum": 0, "maximum": 2}},
    "max_tokens": _COUNT,
    "concurrency": _COUNT,
    "evaluate_every": _COUNT,
    "seed": {"schema": {"minimum": 0, "maximum": 2**63 - 1}},
    "learning_rate": {"schema": RATE},
    "beta": {"schema": {"minimum": 0, "maximum": 1}},
    "teacher": {"described_as": str | None},
    "stop_when": {
        "described_as": Mapping[str, Any] | None,
        "schema": {
            "type": ["object", "null"],
            "properties": {"score": {"type": "number"}, "patience": {"type": "integer", "minimum": 1}},
            "additionalProperties": False,
        },
    },
}


@attrs.frozen(field_transformer=fields_of(LoopOptions, **_BOUNDS))
class LoopOptionsBody(OptionsBody):
    """How a loop works, and how each of its rounds trains: the options of an RL job, or with a `teacher` of a
    distillation job."""


@attrs.frozen
class LoopCreate:
    """The body that creates a training loop.

    A task has `messages` or a `prompt`, and the fields that the reward reads. `reward` is a declarative scorer: its
    `type`, and its fields. `held_out` are the tasks on which the model is validated, and not trained.
    """

    model_id: str = attrs.field(validator=ID)
    tasks: tuple[Mapping[str, Any], ...] = attrs.field(validator=Length(1, 100_000))
    reward: Mapping[str, Any]
    held_out: tuple[Mapping[str, Any], ...] | None = None
    config: LoopOptionsBody | None = None
    needs: NeedsBody | None = None
