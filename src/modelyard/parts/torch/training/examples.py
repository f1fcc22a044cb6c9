"""Training data as rows of tokens, with the positions that are trained.

Sampled tokens are used as they were sampled: encoding their text again often gives other tokens. Turns of one history
share a row as long as each prompt begins with everything before it.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

import attrs

from modelyard.domain.completion import FinishReason, Message, Role, TokenLogprob, Tool, token_bytes
from modelyard.domain.training import Example, History, SampledChoice, Trajectory
from modelyard.domain.training_config import AssistantTurns
from modelyard.errors import InvalidInput
from modelyard.parts.torch.tokenizer import ChatTokenizer


@attrs.frozen
class TokenRow:
    """Tokens up to the last trained one, the positions of the trained ones, and for each the sampler's log-probability.

    A row without positions is the rest of a row that is too long for the model.
    """

    ids: tuple[int, ...]
    places: tuple[int, ...]
    logprobs: tuple[float | None, ...]

    @property
    def before(self) -> Sequence[int]:
        """The positions before the scored tokens."""
        return [place - 1 for place in self.places]

    @property
    def targets(self) -> Sequence[Sequence[int]]:
        """The tokens that are scored at each of these positions: the present one."""
        return [(self.ids[place],) for place in self.places]


LEFT_OUT = TokenRow((), (), ())


def _row(ids: Sequence[int], places: Sequence[int], logprobs: Sequence[float | None]) -> Iterator[TokenRow]:
    """Yield a row, if anything in it is trained. The first token never is, as nothing precedes it to predict it."""
    pairs = [pair for pair in zip(places, logprobs, strict=True) if pair[0] > 0]
    if pairs:
        trained, known = zip(*pairs, strict=True)
        yield TokenRow(tuple(ids[: trained[-1] + 1]), trained, known)


# ---- examples ----------------------------------------------------------------------------------------------------


def example_rows(chat: ChatTokenizer, example: Example, which: AssistantTurns) -> list[TokenRow]:
    """Return a conversation as a row in which all assistant turns, or the last, are trained with their end token.

    The template marks turns with `{% generation %}`; without these marks a turn is what rendering it adds to the
    prompt. Raises `InvalidInput` if a template without marks does not write the beginning of a conversation as the
    beginning of the whole.
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
    groups = groupby(range(len(marks)), key=lambda place: marks[place])
    runs = [list(places) for marked, places in groups if marked]
    return [range(run[0], run[-1] + 1) for run in runs]


def _span(chat: ChatTokenizer, example: Example, turn: int, whole: Sequence[int]) -> range:
    before = _prompt(chat, example.messages[:turn], example.tools)
    through = chat.render(example.messages[: turn + 1], example.tools, add_generation_prompt=False)
    if whole[: len(before)] != before or whole[: len(through)] != through:
        raise InvalidInput.at(
            "messages",
            turn,
            msg="cannot be located: this model's chat template writes a longer conversation differently from its "
            "beginning; send one row for each assistant turn with assistant_turns='last', or choices with token_ids",
        )
    return range(len(before), _end_of_turn(chat, through, len(before)))


def _prompt(chat: ChatTokenizer, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
    if not messages:
        raise InvalidInput.at(
            "messages", 0, msg="is an assistant's: its beginning cannot be located; begin with a system or user message"
        )
    return chat.prompt(messages, tools)


def _end_of_turn(chat: ChatTokenizer, ids: Sequence[int], start: int) -> int:
    """Return the index after the first end token from `start` on; templates add more, such as a new line."""
    ends = [place + 1 for place in range(start, len(ids)) if ids[place] in chat.end_tokens]
    return ends[-1] if ends else len(ids)


# ---- trajectories ------------------------------------------------------------------------------------------------


def trajectory_rows(chat: ChatTokenizer, trajectory: Trajectory, without_logprobs: bool) -> list[TokenRow]:
    """Return the rows of all histories, without those in which nothing is trained. Raises `InvalidInput`."""
    return [row for history in trajectory.histories for row in _stitched(chat, history, without_logprobs)]


def _stitched(chat: ChatTokenizer, history: History, without_logprobs: bool) -> Iterator[TokenRow]:
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
    chat: ChatTokenizer, history: History, without_logprobs: bool
) -> Iterator[tuple[list[int], Sequence[int], Sequence[float | None]]]:
    before: list[Message] = []
    for item in history.items:
        choice = item if isinstance(item, SampledChoice) else SampledChoice(item)
        trained = choice.logprobs is not None or (without_logprobs and choice.message.role is Role.ASSISTANT)
        if trained:
            prompt = list(choice.prompt_token_ids) or _prompt(chat, before, history.tools)
            yield prompt, *_answer(chat, choice, before, history.tools)
        before.append(choice.message)


def _answer(
    chat: ChatTokenizer, choice: SampledChoice, before: Sequence[Message], tools: Sequence[Tool]
) -> tuple[Sequence[int], Sequence[float | None]]:
    """Return the sampled tokens, by their ids or their bytes; without either, those of the text."""
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


def _written(chat: ChatTokenizer, choice: SampledChoice, before: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
    messages = (*before, choice.message)
    whole = chat.render(messages, tools, add_generation_prompt=False)
    span = _span(chat, Example(messages, tuple(tools)), len(before), whole)
    ids = whole[span.start : span.stop]
    return ids[:-1] if choice.finish_reason is FinishReason.LENGTH and _ends(chat, ids) else ids


def _found_again(chat: ChatTokenizer, logprobs: Sequence[TokenLogprob], written: Sequence[int]) -> list[int]:
    """Return the tokens with these bytes, nothing if some have none; a token without bytes ends the turn."""
    end = written[-1] if _ends(chat, written) else None
    found = [chat.token_of_bytes.get(raw, None if raw else end) for raw in map(token_bytes, logprobs)]
    return [] if None in found else [token for token in found if token is not None]


def _ends(chat: ChatTokenizer, ids: Sequence[int]) -> bool:
    return bool(ids) and ids[-1] in chat.end_tokens
