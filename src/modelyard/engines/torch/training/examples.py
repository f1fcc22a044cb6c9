"""Training data as rows of tokens, with the places that are trained.

Sampled tokens are taken as they were sampled: text that is encoded again is often other tokens. Turns of one history
share a row as long as each prompt begins with all that stood before it.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

import attrs

from modelyard.domain.completion import FinishReason, Message, Role, Tool
from modelyard.domain.logprobs import TokenLogprob, token_bytes
from modelyard.domain.training import Example, History, SampledChoice, Trajectory
from modelyard.domain.training_config import AssistantTurns
from modelyard.engines.torch.tokenizer import Chat
from modelyard.errors import InvalidInput


@attrs.frozen
class Row:
    """Tokens up to the last that is trained, the places of those that are, and for each the sampler's log-probability.

    One without places is what was left of a row that is too long for the model.
    """

    ids: tuple[int, ...]
    places: tuple[int, ...]
    logprobs: tuple[float | None, ...]


LEFT_OUT = Row((), (), ())


def _row(ids: Sequence[int], places: Sequence[int], logprobs: Sequence[float | None]) -> Iterator[Row]:
    """A row, if something is trained in it. Nothing stands before the first token, so nothing can foretell it."""
    pairs = [pair for pair in zip(places, logprobs, strict=True) if pair[0] > 0]
    if pairs:
        trained, known = zip(*pairs, strict=True)
        yield Row(tuple(ids[: trained[-1] + 1]), trained, known)


# ---- examples ----------------------------------------------------------------------------------------------------


def example_rows(chat: Chat, example: Example, which: AssistantTurns) -> list[Row]:
    """A conversation, as a row, whose assistant turns, all or the last, are trained with the token that ends them.

    What a turn is the template says by `{% generation %}`; where it does not, a turn is what rendering adds behind the
    prompt. Raises `InvalidInput` when such a template writes a conversation so that its beginning is not the beginning
    of the whole.
    """
    turns = [place for place, message in enumerate(example.messages) if message.role is Role.ASSISTANT]
    if not turns:
        return []
    messages = example.messages[: turns[-1] + 1]
    ids, marks = chat.render_marked(messages, example.tools)
    spans = _runs(marks) or [_span(chat, example, turn, ids) for turn in (turns[-1:] if which == "last" else turns)]
    places = [place for span in (spans[-1:] if which == "last" else spans) for place in span]
    return list(_row(ids, places, [None] * len(places)))


def _runs(marks: Sequence[bool]) -> list[range]:
    """Where marks stand side by side."""
    groups = groupby(range(len(marks)), key=lambda place: marks[place])
    runs = [list(places) for marked, places in groups if marked]
    return [range(run[0], run[-1] + 1) for run in runs]


def _span(chat: Chat, example: Example, turn: int, whole: Sequence[int]) -> range:
    """Where a turn stands in the whole, the token that ends it included."""
    before = _prompt(chat, example.messages[:turn], example.tools)
    through = chat.render(example.messages[: turn + 1], example.tools, add_generation_prompt=False)
    if whole[: len(before)] != before or whole[: len(through)] != through:
        raise InvalidInput.at(
            "messages",
            turn,
            msg="cannot be told apart: this model's chat template writes a longer conversation otherwise from its "
            "beginning; send one row for each assistant turn with assistant_turns='last', or choices with token_ids",
        )
    return range(len(before), _end_of_turn(chat, through, len(before)))


def _prompt(chat: Chat, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
    if not messages:
        raise InvalidInput.at(
            "messages", 0, msg="is an assistant's: where it begins cannot be told; begin with a system or user message"
        )
    return chat.prompt(messages, tools)


def _end_of_turn(chat: Chat, ids: Sequence[int], start: int) -> int:
    """Behind the last token from `start` on that ends a turn: templates write more behind it, such as a new line."""
    ends = [place + 1 for place in range(start, len(ids)) if ids[place] in chat.end_tokens]
    return ends[-1] if ends else len(ids)


# ---- trajectories ------------------------------------------------------------------------------------------------


def trajectory_rows(chat: Chat, trajectory: Trajectory, without_logprobs: bool) -> list[Row]:
    """The rows of all histories; those in which nothing is trained are left out. Raises `InvalidInput`."""
    return [row for history in trajectory.histories for row in _stitched(chat, history, without_logprobs)]


def _stitched(chat: Chat, history: History, without_logprobs: bool) -> Iterator[Row]:
    ids: list[int] = []
    places: list[int] = []
    logprobs: list[float | None] = []
    for prompt, answer, sampled in _turns(chat, history, without_logprobs):
        if prompt[: len(ids)] != ids:
            yield from _row(ids, places, logprobs)
            places, logprobs = [], []
        ids = [*prompt, *answer]
        places += range(len(prompt), len(ids))
        logprobs += sampled
    yield from _row(ids, places, logprobs)


def _turns(
    chat: Chat, history: History, without_logprobs: bool
) -> Iterator[tuple[list[int], Sequence[int], Sequence[float | None]]]:
    """What was sampled: its prompt, its tokens and their log-probabilities."""
    before: list[Message] = []
    for item in history.items:
        choice = item if isinstance(item, SampledChoice) else SampledChoice(item)
        trained = choice.logprobs is not None or (without_logprobs and choice.message.role is Role.ASSISTANT)
        if trained:
            prompt = list(choice.prompt_token_ids) or _prompt(chat, before, history.tools)
            yield prompt, *_answer(chat, choice, before, history.tools)
        before.append(choice.message)


def _answer(
    chat: Chat, choice: SampledChoice, before: Sequence[Message], tools: Sequence[Tool]
) -> tuple[Sequence[int], Sequence[float | None]]:
    """The tokens that were sampled, by their ids or their bytes; without either, those of the text."""
    logprobs = choice.logprobs or ()
    if choice.token_ids:
        return choice.token_ids, [entry.logprob for entry in logprobs] or [None] * len(choice.token_ids)
    written = _written(chat, choice, before, tools)
    found = _found_again(chat, logprobs, written)
    if not found:
        return written, [None] * len(written)
    known: list[float | None] = [entry.logprob for entry in logprobs]
    if choice.finish_reason is not FinishReason.LENGTH and written[-1:] != found[-1:] and _ends(chat, written):
        return [*found, written[-1]], [*known, None]  # an end that the sampler did not report
    return found, known


def _written(chat: Chat, choice: SampledChoice, before: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
    """The tokens of an answer as the template writes it."""
    messages = (*before, choice.message)
    whole = chat.render(messages, tools, add_generation_prompt=False)
    span = _span(chat, Example(messages, tuple(tools)), len(before), whole)
    ids = whole[span.start : span.stop]
    return ids[:-1] if choice.finish_reason is FinishReason.LENGTH and _ends(chat, ids) else ids


def _found_again(chat: Chat, logprobs: Sequence[TokenLogprob], written: Sequence[int]) -> list[int]:
    """The tokens that have these bytes, nothing if some have none; a token without bytes is the end of the turn."""
    end = written[-1] if _ends(chat, written) else None
    found = [chat.token_of_bytes.get(raw, None if raw else end) for raw in map(token_bytes, logprobs)]
    return [] if None in found else [token for token in found if token is not None]


def _ends(chat: Chat, ids: Sequence[int]) -> bool:
    return bool(ids) and ids[-1] in chat.end_tokens
