"""A representation leaves out fields that have their default, and nothing that makes two values unequal."""

from datetime import UTC, datetime
from typing import Any

import attrs

from each import each_case
from modelyard.domain.completion import Choice, FinishReason, Message, Role, TokenLogprob
from modelyard.domain.job import JobStatus
from modelyard.domain.models import Model
from modelyard.domain.training import TrainingJob

NOW = datetime(2030, 1, 1, tzinfo=UTC)
MESSAGE = Message(Role.USER, "hello")
VALUES: tuple[Any, ...] = (
    MESSAGE,
    Choice(0, MESSAGE, FinishReason.STOP),
    Model("i", "acme", "p", "m", "base", NOW, seq=7),
    TrainingJob(
        "i",
        "sft",
        "m",
        "acme",
        "p",
        JobStatus.QUEUED,
        NOW,
        None,
        None,
        None,
        None,
        {},
        {},
        attempts=0,
        progress=0,
        total=1,
    ),
)
SET: dict[str, Any] = {
    "name": "ann",
    "tool_call_id": "call-1",
    "logprobs": (TokenLogprob("a", -1.5),),
    "token_ids": (41,),
    "prompt_token_ids": (42,),
    "prompt_logprobs": (TokenLogprob("b", -2.5),),
    "stop_string": "END",
    "run_id": "run-1",
    "queue_position": 0,
    "last_heartbeat": NOW,
    "estimated_end": NOW,
    "waiting_for": "memory",
    "loop_id": "loop-1",
}


def left_out(value: Any) -> list[str]:
    return [field.name for field in attrs.fields(type(value)) if not field.repr and field.eq]


@each_case("value", VALUES)
def test_what_is_set_is_shown_and_defaults_are_left_out(value: Any) -> None:
    assert left_out(value)
    for name in left_out(value):
        assert f"{name}=" not in repr(value)
        other = attrs.evolve(value, **{name: SET[name]})
        assert other != value
        assert f", {name}={SET[name]!r}" in repr(other)


@each_case("value", VALUES)
def test_the_rest_is_as_attrs_shows_it(value: Any) -> None:
    shown = [field.name for field in attrs.fields(type(value)) if field.repr]
    words = ", ".join(f"{name}={getattr(value, name)!r}" for name in shown)
    assert repr(value) == f"{type(value).__name__}({words})"
    assert "seq=" not in repr(value)
