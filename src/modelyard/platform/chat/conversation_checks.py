"""Check that a conversation has the shape that vendors demand, so that a test on a double fails where they refuse.
Servers of open models are not as strict: `Settings(strict_conversations=False)` leaves this out."""

from collections.abc import Iterator, Sequence

from modelyard.domain.completion import CompletionRequest, Message, Role, Tool
from modelyard.errors import InvalidInput, Problem
from modelyard.platform.runtime import Settings

_OPT_OUT = "; vendors refuse this, and Settings(strict_conversations=False) does not"


def check_conversation(request: CompletionRequest, settings: Settings) -> None:
    """Raise `InvalidInput` for answers of tools without their call, calls without their answer, and doubled tools."""
    if not settings.strict_conversations:
        return
    problems = [*_doubled(request.tools), *_unpaired(request.messages)]
    if problems:
        raise InvalidInput(problems[:100])


def _doubled(tools: Sequence[Tool]) -> Iterator[Problem]:
    names = set[str]()
    for at, tool in enumerate(tools):
        if tool.name in names:
            yield Problem(("tools", at, "function", "name"), f"{tool.name!r} names a tool before, too{_OPT_OUT}")
        names.add(tool.name)


def _unpaired(messages: Sequence[Message]) -> Iterator[Problem]:
    called, pending, calls_at = set[str](), dict[str, None](), 0
    for at, message in enumerate(messages):
        if message.role is Role.TOOL:
            pending.pop(message.tool_call_id or "", None)
            if message.tool_call_id not in called:
                says = f"answers {message.tool_call_id!r}, which the message of the assistant before it did not call"
                yield Problem(("messages", at, "tool_call_id"), says + _OPT_OUT)
            continue
        if pending:
            yield _unanswered(pending, calls_at)
        called, calls_at = {call.id for call in message.tool_calls}, at
        pending = dict.fromkeys([call.id for call in message.tool_calls])
    if pending:
        yield _unanswered(pending, calls_at)


def _unanswered(pending: dict[str, None], at: int) -> Problem:
    ids = ", ".join(map(repr, pending))
    return Problem(("messages", at, "tool_calls"), f"calls {ids} without an answer right after it{_OPT_OUT}")
