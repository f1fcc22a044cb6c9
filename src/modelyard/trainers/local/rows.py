"""Training data as rows of tokens, with the places that are trained.

Sampled tokens are taken as they were sampled: text that is encoded again is often other tokens. Turns of one history
share a row as long as each prompt begins with all that stood before it.
"""

from collections.abc import Iterator, Sequence

import attrs

from modelyard.causal_lm.chat import Chat
from modelyard.domain.completion import FinishReason, Message, Role, TokenLogprob, Tool
from modelyard.domain.training import Example, History, SampledChoice, Trajectory
from modelyard.domain.training_config import AssistantTurns
from modelyard.errors import InvalidInput


@attrs.frozen
class Row:
    """Tokens, the places (1 or more) of those that are trained, and for each the sampler's log-probability."""

    ids: tuple[int, ...]
    places: tuple[int, ...]
    logprobs: tuple[float | None, ...]


# ---- examples ----------------------------------------------------------------------------------------------------


def example_row(chat: Chat, example: Example, which: AssistantTurns) -> Row:
    """A conversation whose assistant turns, all or the last, are trained with the token that ends them.

    What a turn is follows from the template: it is what rendering adds behind the prompt. Raises `InvalidInput` when
    the template writes a conversation so that its beginning is not the beginning of the whole.
    """
    messages = example.messages
    turns = [place for place, message in enumerate(messages) if message.role is Role.ASSISTANT]
    if not turns:
        return Row((), (), ())
    whole = chat.render(messages[: turns[-1] + 1], example.tools, add_generation_prompt=False)
    places: list[int] = []
    for turn in turns[-1:] if which == "last" else turns:
        start, end = _span(chat, example, turn, whole)
        places += range(start, end)
    ids = whole[: places[-1] + 1]
    return Row(tuple(ids), tuple(places), (None,) * len(places))


def _span(chat: Chat, example: Example, turn: int, whole: Sequence[int]) -> tuple[int, int]:
    """Where a turn begins and ends in the whole, the token that ends it included."""
    before = chat.prompt(example.messages[:turn], example.tools)
    through = chat.render(example.messages[: turn + 1], example.tools, add_generation_prompt=False)
    if whole[: len(before)] != before or whole[: len(through)] != through:
        raise InvalidInput.at(
            "messages",
            turn,
            msg="cannot be told apart: this model's chat template writes a longer conversation otherwise from its "
            "beginning; send one row for each assistant turn, and assistant_turns='last'",
        )
    ends = [place for place in range(len(before), len(through)) if whole[place] in chat.end_tokens]
    return len(before), ends[-1] + 1 if ends else len(through)


# ---- trajectories ------------------------------------------------------------------------------------------------


def trajectory_rows(chat: Chat, trajectory: Trajectory, without_logprobs: bool) -> list[Row]:
    """The rows of all histories; those in which nothing is trained are left out."""
    return [row for history in trajectory.histories for row in _stitched(chat, history, without_logprobs) if row.places]


def _stitched(chat: Chat, history: History, without_logprobs: bool) -> Iterator[Row]:
    ids: list[int] = []
    places: list[int] = []
    logprobs: list[float | None] = []
    for prompt, answer, sampled in _turns(chat, history, without_logprobs):
        if prompt[: len(ids)] != ids:
            yield Row(tuple(ids), tuple(places), tuple(logprobs))
            places, logprobs = [], []
        ids = [*prompt, *answer]
        places += range(len(prompt), len(ids))
        logprobs += sampled
    yield Row(tuple(ids), tuple(places), tuple(logprobs))


def _turns(
    chat: Chat, history: History, without_logprobs: bool
) -> Iterator[tuple[list[int], Sequence[int], Sequence[float | None]]]:
    """What was sampled: its prompt, its tokens and their log-probabilities."""
    before: list[Message] = []
    for item in history.items:
        choice = item if isinstance(item, SampledChoice) else SampledChoice(item)
        trained = choice.logprobs is not None or (without_logprobs and choice.message.role is Role.ASSISTANT)
        if trained:
            prompt = list(choice.prompt_token_ids) or chat.prompt(before, history.tools)
            yield prompt, *_answer(chat, choice, before, history.tools)
        before.append(choice.message)


def _answer(
    chat: Chat, choice: SampledChoice, before: Sequence[Message], tools: Sequence[Tool]
) -> tuple[Sequence[int], Sequence[float | None]]:
    logprobs = choice.logprobs
    if choice.token_ids:
        known = [None] * len(choice.token_ids) if logprobs is None else [entry.logprob for entry in logprobs]
        return choice.token_ids, known
    ids = _encoded(chat, choice, before, tools)
    same = logprobs is not None and [chat.token_bytes[token] for token in ids] == list(map(_bytes, logprobs))
    return ids, [entry.logprob for entry in logprobs or ()] if same else [None] * len(ids)


def _encoded(chat: Chat, choice: SampledChoice, before: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
    """The tokens of an answer that came as text alone."""
    prompt = chat.prompt(before, tools)
    whole = chat.render([*before, choice.message], tools, add_generation_prompt=False)
    ids = whole[len(prompt) :]
    ends = [place for place, token in enumerate(ids) if token in chat.end_tokens]
    if not ends:
        return ids
    return ids[: ends[-1]] if choice.finish_reason is FinishReason.LENGTH else ids[: ends[-1] + 1]


def _bytes(entry: TokenLogprob) -> bytes:
    return entry.token.encode() if entry.bytes is None else bytes(entry.bytes)
