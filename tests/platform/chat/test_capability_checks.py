"""What a model cannot do is refused by its name, each thing on its own."""

from typing import Any

import attrs
import pytest

from each import each_case
from modelyard.backends.entries import entry_for
from modelyard.domain.catalogue import Pricing
from modelyard.domain.completion import (
    CompletionRequest,
    Message,
    ResponseFormat,
    ResponseType,
    Role,
    Tool,
    ToolChoice,
    ToolMode,
)
from modelyard.errors import UnsupportedParameter
from modelyard.platform.chat.capability_checks import check_supported
from modelyard.protocols import Capabilities

BARE = CompletionRequest("m", (Message(Role.USER, "x"),))
ENTRY = entry_for("m", Capabilities(), Pricing(), 100)
REFUSED: dict[str, dict[str, Any]] = {
    "logprobs": {"logprobs": True},
    "top_logprobs": {"top_logprobs": 1},
    "return_token_ids": {"return_token_ids": True},
    "prompt_logprobs": {"prompt_logprobs": 0},
    "tools": {"tools": (Tool("f"),)},
    "tool_choice": {"tool_choice": ToolChoice(ToolMode.REQUIRED)},
    "response_format": {"response_format": ResponseFormat(ResponseType.JSON_OBJECT)},
    "structured_outputs": {"response_format": ResponseFormat(ResponseType.CHOICE, choices=("a",))},
    "reasoning_effort": {"extras": {"reasoning_effort": "low"}},
    "verbosity": {"extras": {"verbosity": "low"}},
}


@each_case("name", REFUSED)
def test_each_thing_alone_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        check_supported(attrs.evolve(BARE, **REFUSED[name]), ENTRY, Capabilities())
    assert [problem.loc for problem in caught.value.problems] == [(name,)]


def test_a_bare_request_is_not() -> None:
    assert check_supported(BARE, ENTRY, Capabilities()) == 0
