"""The histories of a rollout: exchanges that continue each other, put together."""

from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from modelyard.domain.completion import Message, Tool
from modelyard.domain.training import History, SampledChoice

Item = Message | SampledChoice


@attrs.frozen
class RecordedTurn:
    """What a model was asked, and its answers."""

    prompt: tuple[Message, ...]
    tools: tuple[Tool, ...]
    answers: tuple[SampledChoice, ...]


@attrs.frozen
class _Branch:
    items: tuple[Item, ...]
    tools: tuple[Tool, ...]

    def begins(self, prompt: Sequence[Any], tools: tuple[Tool, ...]) -> bool:
        return self.tools == tools and [_key(item) for item in self.items] == prompt[: len(self.items)]


def histories_of(turns: Iterable[RecordedTurn]) -> tuple[History, ...]:
    """Return the histories of turns in their order: one that repeats an earlier conversation continues it.

    An answer is sampled in one history only, so that it is trained once; elsewhere it is a message.
    """
    branches: list[_Branch] = []
    for turn in turns:
        prompt = [_key(message) for message in turn.prompt]
        parent = max(
            (branch for branch in branches if branch.begins(prompt, turn.tools)),
            key=lambda branch: len(branch.items),
            default=_Branch((), turn.tools),
        )
        items = (*parent.items, *turn.prompt[len(parent.items) :])
        if parent in branches and turn.answers:
            branches.remove(parent)
        for answer in turn.answers:
            branches.append(_Branch((*items, answer), turn.tools))
            items = tuple([_message(item) for item in items])
    return tuple(History(branch.items, branch.tools) for branch in branches)


def _message(item: Item) -> Message:
    return item.message if isinstance(item, SampledChoice) else item


def _key(item: Item) -> Any:
    """Return what makes a message the same when it comes back. Its reasoning may be left out then."""
    message = _message(item)
    content = message.content or "" if isinstance(message.content, str | None) else repr(message.content)
    return message.role, content, message.tool_calls, message.tool_call_id, message.name
