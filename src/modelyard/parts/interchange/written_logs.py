"""A run written as a log of the evaluation framework Inspect."""

import json
import os
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import PurePath
from typing import Any

from modelyard.domain.evaluation.metrics import FullScoredPrediction
from modelyard.domain.evaluation.objects import ObjectRef
from modelyard.domain.evaluation.run import EvaluationRun, Prediction, RunState, Score
from modelyard.domain.evaluation.scorers import text_of
from modelyard.errors import InvalidInput
from modelyard.part import check_place
from modelyard.platform.evaluations.model_under_test import messages_asked

ENDINGS = (".json", ".eval")

SHORT = 20
"""A version that is longer is a digest, which no name has."""

PROMPTS_KEPT = "modelyard_prompts"
MODEL_KEPT, EVALUATION_KEPT, SCORERS_KEPT = "modelyard_model", "modelyard_evaluation", "modelyard_scorers"
"""Members of the metadata with the references of a run, so that it is the same model and scorers when it is read."""

ROW = "modelyard_row"
"""Under this name the metadata of a sample have the row, so that a log that is read again pairs with the run."""

_STATUS = {RunState.COMPLETED: "success", RunState.RUNNING: "started", RunState.CANCELLED: "cancelled"}
"""The status of a log by the state of the run; of a failed one, "error"."""


def check_log_path(path: str | os.PathLike[str]) -> None:
    check_place(path, "must be the path of a file that ends in .json or .eval")
    if PurePath(path).suffix not in ENDINGS:
        raise InvalidInput.at("path", msg="must end in .json or .eval")


def write_log(run: EvaluationRun, answers: Iterable[FullScoredPrediction], path: str | os.PathLike[str]) -> None:
    """Write a run, JSON or an archive by the ending of the path. Raises `InvalidInput`."""
    check_log_path(path)
    scorers: dict[str, str] = {}
    samples = [*_samples(run, answers, scorers)]
    header = _header(run, samples, scorers)
    if PurePath(path).suffix == ".json":
        with open(path, "w", encoding="utf-8") as file:
            json.dump({**header, "samples": samples}, file)
        return
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for sample in samples:
            archive.writestr(f"samples/{sample['id']}_epoch_{sample['epoch']}.json", json.dumps(sample))
        archive.writestr("summaries.json", json.dumps([_summary(sample) for sample in samples]))
        archive.writestr("header.json", json.dumps(header))


# ---- the header


def _header(run: EvaluationRun, samples: Sequence[Mapping[str, Any]], scorers: Mapping[str, str]) -> dict[str, Any]:
    ended = run.finished_at or run.started_at
    epochs = max((sample["epoch"] for sample in samples), default=1)
    ids = [*dict.fromkeys(sample["id"] for sample in samples)]
    model, config = _name(run.model), {"epochs": epochs}
    status = _STATUS.get(run.state, "error")
    error = {"message": run.reason or status, "traceback": "", "traceback_ansi": ""}
    return {
        "version": 2,
        "status": status,
        "eval": {
            "eval_id": run.id,
            "run_id": run.id,
            "task_id": run.id,
            "created": _text(run.started_at),
            "task": _name(run.evaluation),
            "task_version": 0,
            "dataset": {"samples": len(ids), "sample_ids": ids},
            "model": model,
            "config": config,
            "metadata": {
                MODEL_KEPT: run.model,
                EVALUATION_KEPT: run.evaluation,
                SCORERS_KEPT: scorers,
                PROMPTS_KEPT: {**run.prompts},
            },
        },
        "plan": {"name": "plan", "steps": [], "config": {}},
        "results": _results(run, samples),
        "stats": {"started_at": _text(run.started_at), "completed_at": _text(ended), "model_usage": _used(samples)},
        **({"error": error} if status == "error" else {}),
    }


def _results(run: EvaluationRun, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    scorers = (run.summary or {}).get("scorers")
    known = scorers.items() if isinstance(scorers, Mapping) else ()
    scores = [
        {"name": name, "scorer": name, "params": {}, "metrics": {"mean": {"name": "mean", "value": one["mean"]}}}
        for name, one in known
        if isinstance(one, Mapping) and isinstance(one.get("mean"), int | float)
    ]
    done = sum("error" not in sample for sample in samples)
    return {"total_samples": len(samples), "completed_samples": done, "scores": scores}


def _used(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    total: dict[str, dict[str, int]] = {}
    for sample in samples:
        for model, usage in sample["model_usage"].items():
            sums = total.setdefault(model, dict.fromkeys(usage, 0))
            for name, count in usage.items():
                sums[name] += count
    return total


# ---- samples


def _samples(
    run: EvaluationRun, answers: Iterable[FullScoredPrediction], scorers: dict[str, str]
) -> Iterator[dict[str, Any]]:
    """Yield the samples, and note the reference of each scorer by its name."""
    numbers, epochs = dict[str, int](), Counter[str]()
    for prediction, scores in answers:
        scorers.update((_name(score.scorer), score.scorer) for score in scores)
        number = numbers.setdefault(prediction.row_digest, len(numbers) + 1)
        epochs[prediction.row_digest] += 1  # equal rows are epochs of one, as are its trials
        yield _sample(run, prediction, scores, number, epochs[prediction.row_digest])


def _sample(
    run: EvaluationRun, prediction: Prediction, scores: Sequence[Score], number: int, epoch: int
) -> dict[str, Any]:
    row, model = json.loads(json.dumps(prediction.inputs, default=dict)), _name(run.model)
    asked = _asked(run, row)
    answer = _answer(prediction)
    message = {"role": "assistant", "content": answer, "source": "generate", "model": model}
    choices = [] if prediction.error else [{"message": message, "stop_reason": "stop"}]
    sample = {
        "id": number,
        "epoch": epoch,
        "input": asked,
        "target": _target(row.get("expected")),
        "messages": [*asked, *(choice["message"] for choice in choices)],
        "output": {"model": model, "choices": choices, "completion": answer},
        "scores": {_name(score.scorer): _score(score, answer) for score in scores if _value(score) is not None},
        "metadata": {ROW: row},
        "model_usage": _usage(model, prediction),
        "started_at": _text(prediction.started_at),
    }
    if prediction.latency is not None:
        sample |= {"total_time": prediction.latency, "working_time": prediction.latency}
    if prediction.error:
        sample["error"] = {"message": prediction.error, "traceback": "", "traceback_ansi": ""}
    return sample


def _asked(run: EvaluationRun, row: Mapping[str, Any]) -> list[dict[str, Any]]:
    try:
        messages = messages_asked(run.prompts, row)
    except InvalidInput:  # of a function, which reads what it likes
        return [{"role": "user", "content": text_of(row)}]
    return [{"role": one.role.value, "content": one.text or ""} for one in messages]


def _answer(prediction: Prediction) -> str:
    value = prediction.output.get("value")
    return "" if prediction.error or value is None else text_of(value)


def _target(expected: Any) -> str | list[str]:
    if isinstance(expected, list) and all(isinstance(one, str) for one in expected):
        return expected
    return "" if expected is None else text_of(expected)


def _value(score: Score) -> Any:
    value = score.value.get("value")
    if isinstance(value, bool):
        return "C" if value else "I"
    return dict(value) if isinstance(value, Mapping) else value


def _score(score: Score, answer: str) -> dict[str, Any]:
    return {"value": _value(score), "answer": answer, "explanation": score.comment}


def _usage(model: str, prediction: Prediction) -> dict[str, dict[str, int]]:
    if prediction.prompt_tokens is None:
        return {}
    asked, made = prediction.prompt_tokens, prediction.completion_tokens or 0
    return {model: {"input_tokens": asked, "output_tokens": made, "total_tokens": asked + made}}


def _summary(sample: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: sample[name] for name in ("id", "epoch", "input", "target", "scores", "model_usage")}
    error = sample.get("error")
    return {**kept, "completed": True, **({"error": error["message"]} if error else {})}


def _name(reference: str) -> str:
    ref = ObjectRef.parse(reference)
    if ref is None:
        return reference
    return f"{ref.name}:{ref.version}" if ref.version and len(ref.version) < SHORT else ref.name


def _text(time: datetime) -> str:
    return time.isoformat()
