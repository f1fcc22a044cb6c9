"""A base model in training on several ranks: each takes an equal share of the rows of a step."""

from collections.abc import Sequence

import attrs

from modelyard.domain.training_run import Loss, Objective, Rows
from modelyard.parts.torch.tokenizer import ChatTokenizer
from modelyard.parts.torch.training.learner import LocalLearner
from modelyard.parts.torch.training.memory_plan import MemoryBudget, Pass
from modelyard.parts.torch.training.ranks import Found, Ranks, RankTask, Share
from modelyard.parts.torch.training.row_learner import placed
from modelyard.parts.torch.training.token_logprobs import ScoredRow, TokenScorer
from modelyard.parts.torch.training.trainable import TrainableWeights

Dealt = Sequence[Sequence[Pass]]
"""The passes of each rank, whose rows have the numbers that they have in the step."""


class ParallelLearner(LocalLearner):
    """The learner of rank 0. It computes the same numbers as one rank, except for the order of adding floats."""

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

    def _deal(self, rows: Sequence[ScoredRow]) -> Dealt:
        count = self._ranks.count
        return [
            [
                attrs.evolve(one, numbers=[number * count + rank for number in one.numbers])
                for one in self._room.passes(rows[rank::count])
            ]
            for rank in range(count)
        ]

    def _scored(self, rows: Sequence[ScoredRow]) -> Rows:
        dealt = self._deal(rows)
        return _in_order(len(rows), dealt, self._ranks.compute([Share(RankTask.SCORE, passes) for passes in dealt]))

    def _gradient(self, rows: Sequence[ScoredRow], loss: Objective) -> tuple[Rows, Loss, float]:
        dealt = self._deal(rows)
        result: Loss | None = None

        def derivatives(found: Found) -> list[list[Rows]]:
            nonlocal result
            result = loss.of(_in_order(len(rows), dealt, found))
            return _shared(dealt, result)

        if not loss.linear and all(len(passes) <= 1 for passes in dealt):
            found = self._ranks.compute([Share(RankTask.ASK, passes) for passes in dealt], derivatives)
        else:
            result = self._foreseen(rows, loss)
            parts = zip(dealt, _shared(dealt, result), strict=True)
            found = self._ranks.compute([Share(RankTask.DIFFERENTIATE, passes, given) for passes, given in parts])
        scores = _in_order(len(rows), dealt, found)
        if result is None or loss.linear:
            result = loss.of(scores)
        return scores, result, sum(one.entropy for passes in found for one in passes)


def _shared(dealt: Dealt, loss: Loss) -> list[list[Rows]]:
    return [[[loss.derivatives[number] for number in one.numbers] for one in passes] for passes in dealt]


def _in_order(count: int, dealt: Dealt, found: Found) -> Rows:
    pairs = [pair for passes, some in zip(dealt, found, strict=True) for pair in zip(passes, some, strict=True)]
    return placed(count, [(one, scored.rows) for one, scored in pairs])
