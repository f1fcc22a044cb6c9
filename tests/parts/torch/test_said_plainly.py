"""What cannot be done is refused in the words of the request."""

import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from modelyard import History, Message, Role, SampledChoice, Trajectory, TrajectoryGroup, open_platform
from modelyard.domain.completion import ResponseFormat, ResponseType, Tool, ToolChoice, ToolMode
from modelyard.errors import InvalidInput, JobFailed
from modelyard.parts.contracts.backend import deltas_of, request_for
from modelyard.parts.torch.serving.backend import LocalBackend
from modelyard.parts.torch.serving.room import Room
from modelyard.parts.torch.tokenizer import ChatTokenizer

FAULTS: list[tuple[Mapping[str, Any], str, str]] = [
    ({"not": {}}, "not", "cannot be kept by this engine; leave it out, or use a simpler schema"),
    ({"type": "frob"}, "type", "cannot be kept: Invalid type: frob"),
    ({"type": "string", "pattern": "(?=a)b"}, "pattern", "look-ahead and look-behind, is not supported"),
]


@pytest.mark.parametrize(("schema", "word", "reported"), FAULTS)
def test_a_fault_of_a_schema_is_reported_without_the_grammar_around_it(
    shared_backend: LocalBackend, schema: Mapping[str, Any], word: str, reported: str
) -> None:
    wanted = ResponseFormat(ResponseType.JSON_SCHEMA, "", schema)
    tools, forced = (Tool("send", "", schema),), ToolChoice(ToolMode.REQUIRED)
    for place, fields in (
        (("response_format", "json_schema", "schema"), {"response_format": wanted}),
        (("tools", 0, "function", "parameters"), {"tools": tools, "tool_choice": forced}),
    ):
        with pytest.raises(InvalidInput) as refused:
            deltas_of(shared_backend, request_for("tiny", **fields))
        (problem,) = refused.value.problems
        assert problem.loc == (*place, word)
        assert problem.msg.startswith("cannot be kept")
        assert problem.msg.endswith(reported)


@pytest.mark.parametrize("name", ["rows", "memory", "adapters", "rank", "tuned", "waiting"])
def test_a_room_that_could_hold_nothing_is_none(name: str) -> None:
    """Without rows, a request would wait for ever."""
    least = 0 if name == "waiting" else 1
    assert Room(**{name: least})
    with pytest.raises(InvalidInput, match=f"{name}: must be {least} or more"):
        Room(**{name: least - 1})


STRICT = "{% for one in messages %}{{ raise_exception('odd') if one.content == 'odd' else one.content }}{% endfor %}"


def test_a_row_that_the_template_refuses_is_reported_with_its_number(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "strict")
    (copy / "chat_template.jinja").write_text(STRICT)

    def row(generated: str) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": generated}, {"role": "assistant", "content": "yes"}]}

    def attempt(generated: str) -> Trajectory:
        choice = SampledChoice(Message(Role.ASSISTANT, "yes"), logprobs=())
        return Trajectory((History((Message(Role.USER, generated), choice)),), float(len(generated)))

    with open_platform() as platform:
        platform.add_base_model(copy, id="strict")
        platform.models.create("m", project="p", base_model="strict")
        with pytest.raises(JobFailed, match=r"failed: data\.2\.messages: do not fit .* odd"):
            platform.training.sft("p/m", [row("a"), row("b"), row("odd")]).wait()
        groups = [TrajectoryGroup((attempt("a"), attempt("bc"))), TrajectoryGroup((attempt("a"), attempt("odd")))]
        with pytest.raises(JobFailed, match=r"failed: data\.1\.trajectories\.1\.messages: do not fit"):
            platform.training.rl("p/m", groups).wait()


def test_a_long_prompt_is_read_without_a_warning_of_errors_to_come(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = shutil.copytree(folder, tmp_path / "short")
    settings = json.loads((short / "tokenizer_config.json").read_text())
    (short / "tokenizer_config.json").write_text(json.dumps({**settings, "model_max_length": 5}))
    tokenizer = ChatTokenizer(short)
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    assert len(tokenizer.tokenizer("a long story " * 9)["input_ids"]) > 5
    assert caplog.messages == []
