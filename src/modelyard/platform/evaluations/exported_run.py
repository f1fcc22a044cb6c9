"""A run that was exported as JSON Lines, perhaps from another store: read again, to compare others with it."""

import os
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs

from modelyard.domain.evaluation.metrics import FullScoredPrediction
from modelyard.domain.evaluation.number_rows_fast import ScorePage, pages
from modelyard.domain.evaluation.run import EvaluationRun, Prediction, RunState, Score
from modelyard.errors import InvalidInput
from modelyard.formats.json import loads

_THEN = datetime.fromtimestamp(0, UTC)
ExportedFile = str | os.PathLike[str]


@attrs.frozen
class ExportedRun:
    """Reads the predictions of an exported run with their scores, as often as it is called, in the file's order."""

    path: Path

    @classmethod
    def of(cls, run: object) -> "ExportedRun | None":
        if isinstance(run, str | os.PathLike) and os.fspath(run).endswith(".jsonl"):
            return cls(Path(run))
        return None

    @property
    def run(self) -> EvaluationRun:
        first = next(self.full(), None)
        if first is None:
            raise InvalidInput.at("path", msg=f"{self.path} holds no rows; export the run with report.save(...)")
        return EvaluationRun(self.path.name, "", "", "", first[0].model, _THEN, RunState.COMPLETED, _THEN)

    def full(self) -> Iterator[FullScoredPrediction]:
        digest = ""
        try:
            with self.path.open("rb") as lines:
                for number, line in enumerate(lines, 1):
                    read = self._read(line, number)
                    if read[0].row_digest < digest:
                        raise self._unusable(number, "its row_digest is out of order")
                    digest = read[0].row_digest
                    yield read
        except OSError as error:
            raise InvalidInput.at("path", msg=f"{self.path} cannot be read: {error.strerror}") from None

    def columns(self) -> Iterator[FullScoredPrediction]:
        return self.full()

    def pages(self) -> Iterator[ScorePage]:
        return pages(self.full())

    def _read(self, line: bytes, number: int) -> FullScoredPrediction:
        try:
            found: Any = loads(line.removeprefix(BOM_UTF8) if number == 1 else line)
            prediction = _prediction(found)
            return prediction, [_score(prediction, score, seq) for seq, score in enumerate(found["scores"])]
        except InvalidInput as wrong:
            raise self._unusable(number, wrong.problems[0].msg) from None
        except (KeyError, TypeError, ArithmeticError):
            raise self._unusable(number, "is not a prediction of an exported run") from None

    def _unusable(self, number: int, why: str) -> InvalidInput:
        return InvalidInput.at(
            "path", msg=f"line {number} of {self.path}: {why}; export the run again with report.save('name.jsonl')"
        )


def _prediction(found: Mapping[str, Any]) -> Prediction:
    return Prediction(
        found["prediction_id"],
        "",
        "",
        found["model"],
        found["inputs"],
        found["row_digest"],
        _THEN,
        index=found["index"],
        trial=found["trial"],
        output=_holding(found["output"], found["error"]),
        error=found["error"],
        finished_at=_THEN,
        latency=found["latency"],
        prompt_tokens=found["prompt_tokens"],
        completion_tokens=found["completion_tokens"],
        cost=_cost(found["cost"]),
        copied_from=found["copied_from"],
        possibly_repeated=found["possibly_repeated"],
    )


def _score(prediction: Prediction, found: Mapping[str, Any], seq: int) -> Score:
    return Score(
        f"{prediction.id}:{seq}",
        "",
        "",
        prediction.id,
        found["scorer"],
        _THEN,
        value=_holding(found["value"], found["error"]),
        error=found["error"],
        row_digest=prediction.row_digest,
        trial=prediction.trial,
        seq=seq,
    )


def _holding(value: Any, error: str | None) -> dict[str, Any]:
    return {} if error is not None else {"value": value}


def _cost(text: str | None) -> Decimal | None:
    return None if text is None else Decimal(text)
