"""What an odd server answers, before it is written in a dialect."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from modelyard.domain.completion import FinishReason, ToolCall, Usage


def _calls(given: Iterable[ToolCall | tuple[str, Mapping[str, Any]]]) -> tuple[ToolCall, ...]:
    return tuple([_call(at, one) for at, one in enumerate(given)])


def _call(at: int, given: ToolCall | tuple[str, Mapping[str, Any]]) -> ToolCall:
    if isinstance(given, ToolCall):
        return given
    name, arguments = given
    return ToolCall(f"call-{at}", name, json.dumps(arguments))


@attrs.frozen
class OddAnswer:
    """An answer that a reader must find again, in every dialect and with every fault.

    `calls` are names of tools with their arguments. In a stream, text and arguments come in pieces of `piece`
    characters. `usage` is what the server counts: reasoning is among the tokens of the completion, cached tokens among
    those of the prompt. `finish` is `TOOL_CALLS` if there are calls, unless it is given.
    """

    text: str = "hi there"
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = attrs.field(converter=_calls, default=())
    usage: Usage = Usage(10, 2)  # noqa: RUF009 - frozen
    finish: FinishReason = attrs.field()
    piece: int = 4

    @finish.default
    def _finish(self) -> FinishReason:
        return FinishReason.TOOL_CALLS if self.calls else FinishReason.STOP

    def cut(self, text: str) -> list[str]:
        """Return the pieces of a text in a stream."""
        return [text[at : at + self.piece] for at in range(0, len(text), self.piece)]
