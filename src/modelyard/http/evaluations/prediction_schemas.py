"""Predictions and scores as the clients of the evaluation interface know them (specification 4.5)."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Self

import attrs

from modelyard.domain.evaluation.prediction import Prediction, Score, Source
from modelyard.formats.constraints import Length
from modelyard.http.query import Query

_id = Length(1, 128)
JsonValue = bool | float | int | str | Mapping[str, Any] | None


# ---- requests


@attrs.frozen
class GenaiSpanRef:
    """Where the call of a prediction was traced."""

    trace_id: str = attrs.field(validator=_id)
    span_id: str = attrs.field(validator=_id)


@attrs.frozen
class PredictionCreate:
    """The body that creates a prediction. An output that is left out is given when the prediction is finished."""

    model: str
    inputs: Mapping[str, Any]
    output: object = None
    evaluation_run_id: str | None = attrs.field(default=None, validator=Length(0, 128))
    genai_span_ref: tuple[GenaiSpanRef, ...] | None = attrs.field(default=None, validator=Length(0, 100))

    @property
    def spans(self) -> list[dict[str, str]]:
        """The spans as plain data."""
        return [attrs.asdict(span) for span in self.genai_span_ref or ()]


@attrs.frozen
class PredictionFinish:
    """The body that finishes a prediction; it may be left out."""

    output: object = None


@attrs.frozen
class ScoreCreate:
    """The body that creates a score. Its value is a bool, a number, a string, null or an object."""

    prediction_id: str = attrs.field(validator=_id)
    scorer: str
    value: JsonValue
    evaluation_run_id: str | None = attrs.field(default=None, validator=Length(0, 128))


@attrs.frozen
class PartQuery:
    """Which predictions or scores to list; all of the project without a run."""

    run_id: str | None
    limit: int | None
    offset: int


def parse_part_query(parameters: Mapping[str, Sequence[str]]) -> PartQuery:
    """Read the query of a listing. Raises `InvalidInput` naming every parameter at fault."""
    query = Query(parameters)
    found = PartQuery(query.text("evaluation_run_id"), query.whole("limit"), query.whole("offset") or 0)
    query.check()
    return found


# ---- responses


@attrs.frozen
class PredictionCreated:
    """The answer to a creation."""

    prediction_id: str


@attrs.frozen
class ScoreCreated:
    """The answer to a creation."""

    score_id: str


@attrs.define
class PredictionObject:
    """A prediction.

    The members after `wb_user_id` are our additions: when, from where and for which row it came, its trial, its error,
    how long the call of the model took and what it used (`cost` is USD, `price` USD per unit, both as decimal text),
    which checkpoint answered, and whose output it shares.
    """

    prediction_id: str
    model: str
    inputs: Mapping[str, Any]
    output: object
    evaluation_run_id: str | None
    wb_user_id: str | None
    genai_span_ref: tuple[GenaiSpanRef, ...] | None
    started_at: datetime
    finished_at: datetime | None
    source: Source
    row_digest: str
    trial: int
    error: str | None
    latency_seconds: float | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cost: str | None
    price: Mapping[str, str]
    checkpoint_step: int | None
    copied_from: str | None

    @classmethod
    def of(cls, prediction: Prediction) -> Self:
        """Describe a prediction. Listings are long, so no member is looked up by its name."""
        return cls(
            prediction.id,
            prediction.model,
            prediction.inputs,
            prediction.output.get("value"),
            prediction.run_id,
            prediction.user_id,
            prediction.span.get("genai_span_ref"),
            prediction.started_at,
            prediction.finished_at,
            prediction.source,
            prediction.row_digest,
            prediction.trial,
            prediction.error,
            prediction.latency,
            prediction.prompt_tokens,
            prediction.completion_tokens,
            _usd(prediction.cost),
            prediction.price,
            prediction.checkpoint_step,
            prediction.copied_from,
        )


@attrs.define
class ScoreObject:
    """A score.

    The members after `wb_user_id` are our additions: its prediction, when it was created, its error, and what a judge
    used (`judge_cost` is USD, as decimal text).
    """

    score_id: str
    scorer: str
    value: JsonValue
    evaluation_run_id: str | None
    wb_user_id: str | None
    prediction_id: str
    created_at: datetime
    error: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    judge_cost: str | None

    @classmethod
    def of(cls, score: Score) -> Self:
        """Describe a score. Listings are long, so no member is looked up by its name."""
        return cls(
            score.id,
            score.scorer,
            score.value.get("value"),
            score.run_id,
            score.user_id,
            score.prediction_id,
            score.created_at,
            score.error,
            score.prompt_tokens,
            score.completion_tokens,
            _usd(score.judge_cost),
        )


def _usd(cost: Decimal | None) -> str | None:
    return None if cost is None else f"{cost:f}"
