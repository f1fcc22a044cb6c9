"""Find active weights in columns: without the folder, a training step takes twice the CPU."""

from array import array
from collections.abc import Iterable, Sequence
from itertools import repeat

import attrs
import numpy as np

from modelyard.engines.tabular.fast.weight_columns import ActiveWeights, Floats, Ints, WeightColumns
from modelyard.engines.tabular.learning import TargetAnswer
from modelyard.engines.tabular.model import (
    BEFORE,
    FULL_STOP,
    REACH,
    TOKEN_BITS,
    PromptFeatures,
    Row,
    TabularModel,
    habit,
    ngrams,
)
from modelyard.engines.tabular.tokenizer import VOCABULARY_SIZE


class TokenSlots:
    """The possible successors of a token, by slot, and what the untrained model adds to their logits."""

    def __init__(self, preferred: Row) -> None:
        self.tokens: array[int] = array("q", preferred)
        self.habits: array[float] = array("d", preferred.values())
        self._slots = {token: slot for slot, token in enumerate(preferred)}

    def of(self, token: int) -> int:
        """Return the slot of a token, assigning one if needed."""
        slot = self._slots.get(token)
        if slot is None:
            slot = self._slots[token] = len(self.tokens)
            self.tokens.append(token)
            self.habits.append(0.0)
        return slot


class _SlotsAfter(dict[int, TokenSlots]):
    """The slots after each token that has occurred."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed

    def __missing__(self, last: int) -> TokenSlots:
        made = self[last] = TokenSlots(habit(self._seed, last))
        return made


@attrs.frozen(eq=False)
class Positions:
    """Positions in the order of their answers. A cell is a slot of a position; `widths` are their numbers of cells.

    By position: the number of its prompt, the slots after its last token, the cell of its own token, and where its
    cells start and end. By cell: its place among the tokens of the prompts (`PositionFinder.constant`), and what the
    untrained model adds to its logit.
    """

    prompts: Ints
    after: Sequence[TokenSlots]
    targets: Ints
    widths: Ints
    starts: Ints
    ends: Ints
    places: Ints
    habits: Floats
    active: ActiveWeights


class PositionFinder:
    """Finds the weights of positions; from then on there is one for each feature of a position with its token."""

    def __init__(self, model: TabularModel, columns: WeightColumns) -> None:
        self._columns, self._slots_after = columns, _SlotsAfter(model.seed)

    def constant(self, answers: Sequence[TargetAnswer], prompts: Iterable[PromptFeatures]) -> ActiveWeights:
        """Return the weights of the features that are constant for a prompt, prompt after prompt.

        The place of a logit is the number of the prompt x the size of the vocabulary + the token.
        """
        tokens: dict[PromptFeatures, list[int]] = {prompt: [] for prompt in prompts}
        for answer in answers:
            tokens[answer.features] += answer.targets
        found = []
        for number, (prompt, ids) in enumerate(tokens.items()):
            features, values = np.array([one for one, _ in prompt.constant]), [one for _, one in prompt.constant]
            self._columns.load(features, repeat(int))
            self._columns.meet_each(features, np.array(ids, np.int64))
            start, times = [number * VOCABULARY_SIZE] * len(features), [len(ids)] * len(features)
            found.append((features, np.array(values), np.array(start), np.array(times)))
        return self._columns.active(*map(np.concatenate, zip(*found, strict=True)))

    def positions(self, answers: Sequence[TargetAnswer], prompts: Iterable[PromptFeatures]) -> Positions:
        """Return the positions of the answers to these prompts."""
        numbers = {prompt: number for number, prompt in enumerate(prompts)}
        tokens, lasts, features = map(np.concatenate, zip(*map(_contexts, answers), strict=True))
        counts = [len(answer.targets) for answer in answers]
        values = [answer.features.values for answer in answers]
        at = np.repeat(np.arange(len(tokens)), np.repeat([len(one) for one in values], counts))
        after = list(map(self._slots_after.__getitem__, lasts.tolist()))
        own = np.array([one.of(token) for one, token in zip(after, tokens.tolist(), strict=True)], np.int64)
        self._columns.load(features, (after[position].of for position in at.tolist()))
        self._columns.meet(features, tokens[at], own[at])
        widths = np.array([len(one.tokens) for one in after], np.int64)
        ends = np.cumsum(widths)
        starts = ends - widths
        every = np.concatenate([np.tile(one, count) for one, count in zip(values, counts, strict=True)])
        active = self._columns.active(features, every, starts[at], np.ones(len(features), np.int64))
        owners = np.repeat([numbers[answer.features] for answer in answers], counts)
        places = np.repeat(owners * VOCABULARY_SIZE, widths) + np.frombuffer(
            b"".join(one.tokens for one in after), np.int64
        )
        habits = np.frombuffer(b"".join(one.habits for one in after), np.float64)
        return Positions(owners, after, starts + own, widths, starts, ends, places, habits, active)


def _contexts(answer: TargetAnswer) -> tuple[Ints, Ints, Ints]:
    """Return what `contexts` yields in three columns: tokens, the ones before them, and the features of all of them."""
    padded, count = np.array((*BEFORE, *answer.ids)), len(answer.ids)
    recent = tuple(padded[place : place + count] for place in range(REACH))
    tokens, last = padded[REACH:], recent[-1]
    stops = tokens == FULL_STOP
    sentence = (np.cumsum(stops) - stops) % VOCABULARY_SIZE
    keys = np.array(answer.features.key_ids, np.int64)[:, None] | (sentence << TOKEN_BITS | last)
    features = np.concatenate((keys, ngrams(recent))).T
    if answer.several:
        sizes = list(map(len, answer.several))
        tokens, last, features = np.array(answer.targets), np.repeat(last, sizes), np.repeat(features, sizes, axis=0)
    return tokens, last, features.ravel()
