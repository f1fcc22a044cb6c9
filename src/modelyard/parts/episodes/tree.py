"""The turns of an episode as a tree: how each begins, why it begins anew, and what of it is trained."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import attrs

from modelyard.domain.completion import FinishReason, Message, Role, TokenLogprob, Tool
from modelyard.domain.training import SampledChoice
from modelyard.formats.chat.messages import RecordedMessage, RecordedTool, message_of, tool_of
from modelyard.formats.converter import structure, unstructure
from modelyard.parts.episodes.history import common_form, common_length
from modelyard.parts.episodes.packed import IDS, entries_of, unpacked
from modelyard.parts.episodes.records import EpisodeTurn

FIRST = "the first turn"
AGAIN = "retry: the same was asked before"
FOLLOWS = ""
"""The prompt is the turn before, its answer and new messages, token by token."""


@attrs.frozen(eq=False)
class TreeTurn:
    """A turn with all that it was asked. `parent` is the turn that it follows, None for a root. `messages` are those of
    the prompt, `prompt_ids` its tokens and `ids` those that were sampled, with the `logprobs` of the model that did.

    `continues` is whether the tokens of the prompt begin with those of the parent. `why` is the reason why the turn
    begins a branch, "" if it only follows; `untrained` is why nothing of it is trained, "" if it is.
    """

    turn: EpisodeTurn
    parent: "TreeTurn | None"
    continues: bool
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    prompt_ids: tuple[int, ...]
    choice: SampledChoice
    why: str = ""
    untrained: str = ""

    @property
    def id(self) -> str:
        """The id of the turn."""
        return self.turn.id

    @property
    def raw(self) -> bool:
        """Whether it continued a prompt of text or tokens, without messages."""
        return bool(self.turn.body.get("raw"))

    @property
    def ids(self) -> tuple[int, ...]:
        """The tokens that were sampled."""
        return self.choice.token_ids

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...] | None:
        """The log-probabilities of what was sampled; None where the backend had none."""
        return self.choice.logprobs

    @property
    def all_ids(self) -> tuple[int, ...]:
        """The tokens of prompt and answer."""
        return (*self.prompt_ids, *self.ids)

    @property
    def injected(self) -> tuple[int, ...]:
        """The tokens of the prompt that the program or the template added after the parent; all of a root's."""
        before = len(self.parent.all_ids) if self.parent is not None and self.continues else 0
        return self.prompt_ids[before:]

    @property
    def added(self) -> tuple[Message, ...]:
        """The messages that follow those of the parent, or all of them."""
        known = 0 if self.parent is None else common_length(_forms(self.messages), _forms(self.parent.said))
        return self.messages[known:]

    @cached_property
    def said(self) -> tuple[Message, ...]:
        """The messages of the prompt, and the answer."""
        return (*self.messages, self.choice.message)

    @property
    def follows_exactly(self) -> bool:
        """Return whether the messages begin with those of the parent and its answer, as they are, and so the tokens."""
        return self.continues and not self.turn.whole and self.parent is not None and self.tools == self.parent.tools


def _forms(messages: Iterable[Message]) -> list[str]:
    return list(map(common_form, messages))


def tree_of(turns: Sequence[EpisodeTurn], model_id: str) -> list[TreeTurn]:
    """Return the turns of an episode, in the order in which they were booked, for the model that is trained."""
    placed: dict[str, TreeTurn] = {}
    waiting = {turn.id: turn for turn in turns}
    for turn in turns:
        _place(turn, waiting, placed)
    late = [_joined_late(one, placed.values()) for one in (placed[turn.id] for turn in turns)]
    return _judged(_rejoined(late), model_id)


def _place(turn: EpisodeTurn, waiting: dict[str, EpisodeTurn], placed: dict[str, TreeTurn]) -> None:
    """Put a turn, and those that it follows, among those whose prompts are known."""
    path = [turn]
    while path[-1].parent_id in waiting and path[-1].parent_id not in placed:
        path.append(waiting[path[-1].parent_id])
    for one in reversed(path):
        if one.id not in placed:
            placed[one.id] = _read(one, placed.get(one.parent_id))


def _read(turn: EpisodeTurn, parent: TreeTurn | None) -> TreeTurn:
    body = unstructure(turn.body)
    messages, prompt = tuple(map(_message, body["messages"])), unpacked(IDS, body["prompt"])
    if parent is not None:
        messages = messages if turn.whole else (*parent.said, *messages)
        prompt = (*parent.all_ids, *prompt) if turn.continues else prompt
    tools = tuple(tool_of(structure(RecordedTool, one)) for one in body["tools"]) if "tools" in body else None
    if tools is None:
        tools = () if parent is None else parent.tools
    answer, reason, ids = _message(body["answer"]), FinishReason(body["finish_reason"]), unpacked(IDS, body["ids"])
    choice = SampledChoice(answer, reason, entries_of(body, answer), ids, prompt)
    return TreeTurn(turn, parent, turn.continues and parent is not None, messages, tools, prompt, choice)


def _message(value: Any) -> Message:
    return message_of(structure(RecordedMessage, value))


def _joined_late(one: TreeTurn, others: Iterable[TreeTurn]) -> TreeTurn:
    """Return a root with the turn that its tokens follow, if that was booked after it: a program may ask on before the
    end of a stream."""
    if one.parent is not None or not one.prompt_ids:
        return one
    prompt = one.prompt_ids
    fits = [other for other in others if 0 < other.turn.length <= len(prompt) and other is not one]
    found = [other for other in fits if other.all_ids == prompt[: other.turn.length]]
    return attrs.evolve(one, parent=max(found, key=lambda it: it.turn.length), continues=True) if found else one


def _rejoined(turns: Sequence[TreeTurn]) -> list[TreeTurn]:
    """Return the turns, each with its parent as it is now. What follows is longer, so that no turn follows itself."""
    now: dict[str, TreeTurn] = {}
    for one in sorted(turns, key=_depth):
        now[one.id] = one if one.parent is None else attrs.evolve(one, parent=now[one.parent.id])
    return [now[one.id] for one in turns]


def _depth(one: TreeTurn) -> int:
    depth, at = 0, one.parent
    while at is not None:
        depth, at = depth + 1, at.parent
    return depth


# ---- what is said of each turn ---------------------------------------------------------------------------------------


def _judged(turns: Sequence[TreeTurn], model_id: str) -> list[TreeTurn]:
    replaced, first_child = _replaced(turns), dict[str, str]()
    judged: dict[str, TreeTurn] = {}
    for one in sorted(turns, key=_depth):
        parent = None if one.parent is None else judged[one.parent.id]
        firstborn = parent is None or first_child.setdefault(parent.id, one.id) == one.id
        why = _why_root(one, turns) if parent is None else _why_branch(one, firstborn)
        untrained = "the same was asked again, and the program went on from that" if one.id in replaced else ""
        judged[one.id] = attrs.evolve(one, parent=parent, why=why, untrained=_untrained(one, model_id) or untrained)
    return [judged[one.id] for one in turns]


def _replaced(turns: Sequence[TreeTurn]) -> set[str]:
    """Return the turns that were asked again: of several answers to one prompt, those that were continued count, and
    if none was, those of the last request."""
    continued = {one.parent.id for one in turns if one.parent is not None}
    alike: defaultdict[tuple[Any, ...], list[TreeTurn]] = defaultdict(list)
    for one in turns:
        parent = "" if one.parent is None else one.parent.id
        prompt = one.prompt_ids if one.raw else one.turn.prompt
        alike[parent, prompt, one.turn.offered, one.turn.model_id].append(one)
    replaced: set[str] = set()
    for asked in alike.values():
        last = asked[-1].turn.body["request"]
        kept = {one.id for one in asked if one.id in continued}
        kept = kept or {one.id for one in asked if one.turn.body["request"] == last}
        replaced |= {one.id for one in asked} - kept
    return replaced


def _untrained(one: TreeTurn, model_id: str) -> str:
    if one.turn.model_id != model_id:
        return f"{one.turn.called!r} answered, which is not the model that is trained"
    if len(one.all_ids) != one.turn.length:
        return "turns that it follows were removed"
    if not one.ids or not one.prompt_ids:
        return "the backend gave no token ids"
    if one.logprobs is None:
        return "the backend gave no log-probabilities of its own for an answer of a forced form"
    return "" if len(one.logprobs) == len(one.ids) else "the backend gave other log-probabilities than tokens"


def _why_branch(one: TreeTurn, firstborn: bool) -> str:
    """Return why a turn that follows another begins a sequence of its own."""
    assert one.parent is not None
    if not one.continues:
        return _why_split(one, one.parent)
    if one.tools != one.parent.tools:
        return "other tools were offered"
    if one.turn.whole and not one.raw:
        return "rewritten: the messages differ, and the tokens are the same"
    return FOLLOWS if firstborn else "fork: another turn follows the same one"


def _why_split(one: TreeTurn, parent: TreeTurn) -> str:
    if not parent.all_ids or not one.prompt_ids:
        return "the backend gave no token ids"
    if one.tools != parent.tools:
        return "other tools were offered"
    sent = one.messages[len(parent.messages) : len(parent.said)]
    if parent.choice.message.reasoning and not any(message.reasoning for message in sent):
        return "thinking dropped: the answer came back without its reasoning"
    if one.turn.whole:
        return "rewritten: the program wrote the answer in another way"
    return "other tokens: the template or the tokenizer writes the answer in another way than it was sampled"


def _why_root(one: TreeTurn, turns: Sequence[TreeTurn]) -> str:
    """Return why a turn that follows no other begins anew, from the earlier turn that it has most in common with."""
    earlier = [other for other in turns if other.turn.seq < one.turn.seq]
    if not earlier:
        return FIRST
    if one.raw:
        again = any(other.raw and other.prompt_ids == one.prompt_ids for other in earlier)
        return AGAIN if again else "a prompt of its own"
    mine = _forms(one.messages)
    nearest = max(earlier, key=lambda other: common_length(mine, _forms(other.said)))
    theirs = _forms(nearest.said)
    common = common_length(mine, theirs)
    if mine == theirs[:-1]:
        return AGAIN
    if all(message.role in (Role.SYSTEM, Role.DEVELOPER) for message in one.messages[:common]):
        longer = [other for other in earlier if len(other.said) > len(mine)]
        asked = {form for other in longer for form in _forms(other.said)[common:]}
        if not asked.isdisjoint(mine[common:]):
            return "compacted: the history is shorter, and has some of the same messages"
        return "a conversation of its own"
    if common >= len(mine) or common == len(nearest.messages):
        return f"rewritten: message {common + 1} is not what was answered"
    if len(mine) < len(theirs) - 1:
        return f"compacted: the history is shorter, and differs from message {common + 1} on"
    return f"rewritten: message {common + 1} differs"


# ---- what is trained ---------------------------------------------------------------------------------------------


def sequences_of(turns: Sequence[TreeTurn]) -> list[list[TreeTurn]]:
    """Return the turns that are trained, as sequences: in each, every prompt begins with all tokens before it.

    A turn is in one sequence alone, so no token is trained twice. At a fork, the first branch has the turns before it.
    The order does not depend on which of several calls at a time is answered first.
    """
    found: list[list[TreeTurn]] = []
    ends: dict[str, list[TreeTurn]] = {}
    for one in sorted(turns, key=lambda it: (it.turn.length, it.turn.tokens, it.turn.seq)):
        if one.untrained:
            continue
        before = ends.pop(one.parent.id, None) if one.parent is not None and one.follows_exactly else None
        if before is None:
            before = []
            found.append(before)
        before.append(one)
        ends[one.id] = before
    return found
