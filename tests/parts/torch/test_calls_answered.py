"""A call of a tool goes back into the conversation as it came, with what the tool said."""

import shutil
from pathlib import Path

import pytest

from modelyard import Message, Platform, Role, Tool, open_platform
from modelyard.domain.completion import ToolChoice, ToolMode

MISTRAL = (
    "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}{% endif %}"
    "{% for one in messages %}{% for call in one.tool_calls or [] %}"
    "{% if call.id is not defined or call.id | length != 9 %}"
    "{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif %}"
    "[TOOL_CALLS][{{ call.function | tojson }}]{% endfor %}{{ one.content }}{% endfor %}"
)
SEND = Tool("send", "", {"type": "object", "properties": {}, "additionalProperties": False})


@pytest.fixture
def platform(folder: Path, tmp_path: Path) -> Platform:
    copy = shutil.copytree(folder, tmp_path / "mistral")
    (copy / "chat_template.jinja").write_text(MISTRAL)
    platform = open_platform()
    platform.add_base_model(copy, id="mistral")
    return platform


def test_templates_get_the_ids_of_calls_and_each_turn_has_its_own_ids(platform: Platform) -> None:
    pytest.importorskip("llguidance")
    generated = [Message(Role.USER, "go")]
    for _ in range(3):
        answer = platform.chat.complete(
            model="mistral",
            messages=generated,
            tools=(SEND,),
            tool_choice=ToolChoice(ToolMode.REQUIRED),
            seed=3,
            max_tokens=99,
        )
        (call,) = answer.choices[0].message.tool_calls
        generated += [answer.choices[0].message, Message(Role.TOOL, "sent", tool_call_id=call.id)]
    ids = [message.tool_call_id for message in generated if message.role is Role.TOOL]
    assert len(set(ids)) == 3
    assert all(id is not None and id.isalnum() for id in ids)
