"""A prompt that is given as it is: read as the conversation that it writes, and the beginning of an answer.

An end of turn closes each turn, which begins with its role, as `model.prompt_ids` writes them. What follows the last
one is the beginning of the answer, without the words that announce it. So the tokens of a conversation are answered as
the conversation is, and any other text is continued.
"""

from collections.abc import Iterator, Sequence

import attrs

from modelyard.domain.completion import Message, Role
from modelyard.domain.training_run import TargetRow
from modelyard.engines.tabular.learning import TargetTokens
from modelyard.engines.tabular.model import Odds, PromptFeatures, TabularModel, contexts, prompt_features
from modelyard.engines.tabular.tokenizer import END_OF_TURN, decode, encode

_ANNOUNCED = encode("assistant: ")
_ROLES = {role.value: role for role in Role}


@attrs.frozen
class RawPrompt:
    """The turns of a prompt, and the tokens of the answer that it begins."""

    messages: tuple[Message, ...]
    begun: tuple[int, ...]

    @property
    def features(self) -> PromptFeatures:
        """The features of its turns."""
        return prompt_features(self.messages)


def read_prompt(ids: Sequence[int]) -> RawPrompt:
    """Read the tokens of a prompt."""
    *turns, last = _pieces(ids)
    return RawPrompt(tuple(map(_message, turns)), tuple(_answer(last)))


def prompt_odds(model: TabularModel, ids: Sequence[int]) -> Iterator[tuple[int, Odds]]:
    """Yield each token of a prompt but the first, with the distribution that the tokens before it give."""
    turns: list[Message] = []
    for at, piece in enumerate(_pieces(ids)):
        scorer = model.scorer(prompt_features(turns))
        for place in range(at == 0, len(piece)):
            yield piece[place], scorer.odds(_answer(piece[:place]))
        turns.append(_message(piece))


def read_row(row: TargetRow) -> list[TargetTokens]:
    """Read a row: after each token its targets, turn by turn, as many in all as the row has and in their order."""
    turns: list[Message] = []
    read, place = [], 0
    for piece in _pieces([*row.inputs, 0]):  # the last one stands for what comes next, whatever it is
        features = prompt_features(turns)
        answer = _answer(piece)
        announced = contexts(features, piece[: len(piece) - len(answer)])
        after = [*announced, *contexts(features, answer)]
        if not turns:
            after = after[1:]  # nothing comes before the first token
        targets = row.targets[place : place + row.k * len(after)]
        place += len(targets)
        each = [(last, active) for _, last, active in after for _ in range(row.k)]
        read.append(TargetTokens(features, [(token, *where) for token, where in zip(targets, each, strict=True)]))
        turns.append(_message(piece))
    return read


def _pieces(ids: Sequence[int]) -> list[list[int]]:
    """Split after each end of turn; the last piece has none, and may be empty."""
    pieces: list[list[int]] = [[]]
    for token in ids:
        pieces[-1].append(token)
        if token == END_OF_TURN:
            pieces.append([])
    return pieces


def _answer(piece: Sequence[int]) -> list[int]:
    """Return what an answer has of these tokens."""
    start = len(_ANNOUNCED) if list(piece[: len(_ANNOUNCED)]) == _ANNOUNCED else 0
    return list(piece[start:])


def _message(turn: Sequence[int]) -> Message:
    """Return a turn; one without a role is the user's."""
    named, colon, text = decode(turn).partition(": ")
    return Message(_ROLES[named], text) if colon and named in _ROLES else Message(Role.USER, decode(turn))
