"""A scorer by meaning: how near the vectors of the output and of what is expected are."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from modelyard.domain.evaluation.scorers import text_of

if TYPE_CHECKING:
    from modelyard.platform.platform import Platform


@attrs.frozen
class SemanticSimilarity:
    """Scores the cosine (-1 to 1) of the angle between the embeddings of the output and of the row's field `expected`.

    That field is a text, or a list of texts of which the nearest counts; an output or a text that is empty scores 0.
    `model` is one of the platform's that makes embeddings; what they cost is booked as of any request.

    Raises what `platform.embeddings.create` raises; then the row has no score.
    """

    platform: "Platform"
    model: str
    expected: str = "expected"

    def __call__(self, output: Any, row: Mapping[str, Any]) -> float:
        given, wanted = text_of(output), row[self.expected]
        texts = [text for text in ([wanted] if isinstance(wanted, str) else wanted) if text.strip()]
        if not given.strip() or not texts:
            return 0.0
        first, *others = self.platform.embeddings.create(model=self.model, input=[given, *texts]).vectors
        return max(_cosine(first, other) for other in others)


def _cosine(first: Sequence[float], second: Sequence[float]) -> float:
    lengths = math.hypot(*first) * math.hypot(*second)
    found = sum(one * other for one, other in zip(first, second, strict=True))
    return max(-1.0, min(1.0, found / lengths)) if lengths else 0.0
