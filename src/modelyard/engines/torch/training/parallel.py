"""A base model in training on several ranks: each takes every so many-th row of a step."""

from collections.abc import Sequence
from typing import cast

import attrs

from modelyard.engines.torch.tokenizer import ChatTokenizer
from modelyard.engines.torch.training.examples import TokenRow
from modelyard.engines.torch.training.learner import LocalLearner, placed
from modelyard.engines.torch.training.memory_plan import MemoryBudget, Pass
from modelyard.engines.torch.training.ranks import Found, Ranks, RankTask, Rows, Share
from modelyard.engines.torch.training.token_logprobs import TokenScorer
from modelyard.engines.torch.training.trainable import TrainableWeights
from modelyard.trainers import loop
from modelyard.trainers.losses import Loss

Dealt = Sequence[Sequence[Pass]]
"""The passes of each rank, whose rows have the numbers that they have in the step."""


class ParallelLearner(LocalLearner):
    """The learner of rank 0. Its numbers are those of one rank, but for the order in which floats are added."""

    def __init__(
        self,
        chat: ChatTokenizer,
        scorer: TokenScorer,
        trained: TrainableWeights,
        room: MemoryBudget,
        context_length: int,
        ranks: Ranks,
    ) -> None:
        super().__init__(chat, scorer, trained, room, context_length)
        self._ranks = ranks

    def _deal(self, turns: Sequence[loop.Turn]) -> Dealt:
        count = self._ranks.count
        return [
            [
                attrs.evolve(one, numbers=[number * count + rank for number in one.numbers])
                for one in self._room.passes(cast(Sequence[TokenRow], turns[rank::count]))
            ]
            for rank in range(count)
        ]

    def _scored(self, turns: Sequence[loop.Turn]) -> loop.Rows:
        dealt = self._deal(turns)
        return _in_order(len(turns), dealt, self._ranks.compute([Share(RankTask.SCORE, passes) for passes in dealt]))

    def _gradient(self, turns: Sequence[loop.Turn], loss: loop.Objective) -> tuple[Loss, float]:
        dealt = self._deal(turns)
        result: Loss | None = None

        def derivatives(found: Found) -> list[list[Rows]]:
            nonlocal result
            result = loss.of(_in_order(len(turns), dealt, found))
            return _shared(dealt, result)

        if not loss.linear and all(len(passes) <= 1 for passes in dealt):
            found = self._ranks.compute([Share(RankTask.ASK, passes) for passes in dealt], derivatives)
        else:
            result = self._foreseen(turns, loss)
            parts = zip(dealt, _shared(dealt, result), strict=True)
            found = self._ranks.compute([Share(RankTask.DIFFERENTIATE, passes, given) for passes, given in parts])
        if result is None or loss.linear:
            result = loss.of(_in_order(len(turns), dealt, found))
        return result, sum(one.entropy for passes in found for one in passes)


def _shared(dealt: Dealt, loss: Loss) -> list[list[Rows]]:
    return [[[loss.derivatives[number] for number in one.numbers] for one in passes] for passes in dealt]


def _in_order(count: int, dealt: Dealt, found: Found) -> loop.Rows:
    pairs = [pair for passes, some in zip(dealt, found, strict=True) for pair in zip(passes, some, strict=True)]
    return placed(count, [(one, scored.rows) for one, scored in pairs])
