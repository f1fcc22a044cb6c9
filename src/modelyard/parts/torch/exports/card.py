"""The card of a model, README.md as hubs have it: what is known of a checkpoint, and nothing of this machine."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from modelyard.domain.evaluation.run import EvaluationRun, RunState
from modelyard.domain.job import Job
from modelyard.domain.promotion import Promotion
from modelyard.parts.torch.exports.adapter_folder import NamedBase
from modelyard.parts.torch.exports.taken import TakenCheckpoint
from modelyard.platform.evaluations.service import Evaluations
from modelyard.platform.models.service import Models
from modelyard.platform.paging import get_or_none

CARD = "README.md"

_CONTROLS = re.compile("[\x7f-\x9f\ufeff\ufffe\uffff]")
"""What JSON has as it is, and YAML does not."""

_RELATIONS = {"adapter": "adapter", "merged": "finetune", "gguf": "quantized"}
_LIBRARIES = {"adapter": "peft", "merged": "transformers", "gguf": "gguf"}
_NUMBER, _ADAPTER = "{:.4g}", "adapter_config.json"


@attrs.frozen
class _Score:
    """The mean of a metric in a run, with its interval if it has one."""

    evaluation: str
    metric: str
    mean: float
    low: float | None
    high: float | None
    rows: int


def model_card(taken: TakenCheckpoint, form: str, license: str | None = None) -> str:
    """Return the card of a checkpoint in a form: "adapter", "merged" or "gguf". What is not known is left out."""
    named = NamedBase.of(taken.base) if "hub_id" in taken.base.source else None
    job, scores = _job(taken), list(_scores(taken))
    front = _front(taken, form, named, license, job, scores)
    lines = [f"{name}: {_yaml(value)}" for name, value in front.items() if value]
    body = [
        *_head(taken, form, named),
        *_training(taken, job),
        *_evaluations(scores),
        *_gate(taken),
    ]
    return "\n".join(["---", *lines, "---", "", *body]) + "\n"


def _yaml(value: object) -> str:
    """Write a value as JSON, which is YAML, too."""
    text = json.dumps(value, ensure_ascii=False)
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _front(
    taken: TakenCheckpoint,
    form: str,
    base: NamedBase | None,
    license: str | None,
    job: Job | None,
    scores: list[_Score],
) -> Mapping[str, Any]:
    dataset = _dataset(taken)
    kinds = {step.kind for step in taken.lineage.steps if step.kind}
    return {
        "base_model": base and base.name,
        "base_model_relation": base and _RELATIONS[form],
        "license": license,
        "library_name": _LIBRARIES[form],
        "pipeline_tag": "text-generation",
        "tags": ["modelyard", *(["lora"] if _ADAPTER in taken.files else []), *sorted(kinds)],
        "datasets": [dataset] if dataset else None,
        "model-index": [_index(taken, scores)] if scores else None,
    }


def _index(taken: TakenCheckpoint, scores: list[_Score]) -> Mapping[str, Any]:
    return {
        "name": taken.model.name,
        "results": [
            {
                "task": {"type": "text-generation"},
                "dataset": {"name": score.evaluation, "type": score.evaluation},
                "metrics": [
                    {"type": score.metric, "name": score.metric, "value": score.mean, "args": _interval(score)}
                ],
            }
            for score in scores
        ],
    }


def _interval(score: _Score) -> Mapping[str, Any]:
    known = {} if score.low is None else {"confidence_interval": [score.low, score.high]}
    return {**known, "rows": score.rows}


def _job(taken: TakenCheckpoint) -> Job | None:
    job_id = taken.lineage.job_id
    if job_id is None:
        return None
    return taken.runtime.store.read(lambda snapshot: get_or_none(snapshot, Job, job_id))


def _dataset(taken: TakenCheckpoint) -> str | None:
    """Return the name of the data set that was trained on, without where it is kept."""
    url = taken.lineage.steps[0].data_url
    return None if not url else url.rpartition("/")[2].partition(":")[0]


# ---- sections ------------------------------------------------------------------------------------------------------


def _text(value: object) -> str:
    """Return a value in one line, with nothing that Markdown or HTML reads as more than text."""
    plain = " ".join(str(value).split())
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", plain)


def _head(taken: TakenCheckpoint, form: str, base: NamedBase | None) -> Iterator[str]:
    yield f"# {_text(taken.model.name)}, step {taken.checkpoint.step}"
    yield ""
    what = {"adapter": "A low-rank adapter of", "merged": "All weights of a tuned", "gguf": "A GGUF file of a tuned"}
    known = taken.base.id if base is None else base.name
    at = f" at revision `{base.revision}`" if base is not None and base.revision else ""
    yield f"{what[form]} {_text(known)}{at} ({taken.base.architecture}, {taken.base.parameters:,} weights)."
    yield ""
    yield f"* Digest of the checkpoint: `{taken.checkpoint.digest}`"
    if taken.lineage.aliases:
        yield f"* Served as: {', '.join(_text(name) for name in taken.lineage.aliases)}"
    yield ""


def _training(taken: TakenCheckpoint, job: Job | None) -> Iterator[str]:
    trained = [step for step in taken.lineage.steps if step.kind]
    if not trained:
        return
    yield "## Training"
    yield ""
    if job is not None and "rows" in job.spec:
        name = _dataset(taken)
        yield f"* Rows: {job.spec['rows']}{f' of {_text(name)}' if name else ''}"
    if _ADAPTER in taken.files:
        with taken.open_file(_ADAPTER) as file:
            shape = json.load(file)
        yield f"* Adapter: rank {shape['r']}, alpha {shape['lora_alpha']:g}"
    if taken.base.weights is not None:
        yield f"* Trained and evaluated beside {taken.base.weights} weights"
    if job is not None:
        yield from (f"* `{name}`: {_text(value)}" for name, value in _options(job).items())
    if taken.checkpoint.metrics:
        last = (f"{name} {_NUMBER.format(value)}" for name, value in sorted(taken.checkpoint.metrics.items()))
        yield f"* Of the last step: {_text(', '.join(last))}"
    yield ""
    yield "| step | method | SHA-256 of the data | digest |"
    yield "| --: | --- | --- | --- |"
    for step in trained:
        yield f"| {step.step} | {step.kind} | {step.data_digest or ''} | {step.digest or ''} |"
    yield ""


def _options(job: Job) -> Mapping[str, Any]:
    """Return the options of a training: numbers, and words of the field, which hold no place of a machine."""
    config = job.spec.get("config", {})
    return {
        name: ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
        for name, value in sorted(config.items())
        if value is not None and not _may_be_private(value)
    }


def _may_be_private(value: object) -> bool:
    return not (isinstance(value, int | float | list | tuple) or re.fullmatch(r"[\w. -]{1,40}", str(value)))


def _scores(taken: TakenCheckpoint) -> Iterator[_Score]:
    """Yield the newest scores of each evaluation."""
    seen: set[str] = set()
    for run in taken.lineage.runs:
        if run.state is RunState.COMPLETED and run.evaluation not in seen:
            seen.add(run.evaluation)
            yield from _scores_of(taken, run)


def _scores_of(taken: TakenCheckpoint, run: EvaluationRun) -> Iterator[_Score]:
    report = Evaluations(taken.runtime, taken.principal).report(run)
    name = run.evaluation.rpartition("/")[2].partition(":")[0]
    for metric in report.aggregate.metrics:
        if metric.mean is not None:
            within = metric.interval
            low, high = (None, None) if within is None else (within.low, within.high)
            yield _Score(name, metric.name, metric.mean, low, high, report.aggregate.rows)


def _evaluations(scores: list[_Score]) -> Iterator[str]:
    if not scores:
        return
    yield "## Evaluation"
    yield ""
    yield "| evaluation | metric | mean | 95 % interval | rows |"
    yield "| --- | --- | --: | --- | --: |"
    for one in scores:
        between = "" if one.low is None else f"{one.low:.4g} to {one.high:.4g}"
        yield f"| {_text(one.evaluation)} | {_text(one.metric)} | {one.mean:.4g} | {between} | {one.rows} |"
    yield ""


def _gate(taken: TakenCheckpoint) -> Iterator[str]:
    """Yield what the checkpoint was compared with when an alias was pointed at it."""
    found = [one for name in taken.lineage.aliases if (one := _promoted(taken, name)) is not None]
    if not found:
        return
    yield "## Gate"
    yield ""
    for one in found:
        yield f"* {_text(one.alias)}, from step {one.from_step}: {_text(one.verdict['outcome'])}"
        for name, compared in one.verdict.get("metrics", {}).items():
            yield f"    * {_text(name)}: {_compared(compared)}"
    yield ""


def _promoted(taken: TakenCheckpoint, alias: str) -> Promotion | None:
    """Return the last promotion of this step to an alias that had to meet a requirement."""
    for one in Models(taken.runtime, taken.principal).promotions(taken.model, alias, order="desc"):
        if one.step == taken.checkpoint.step and one.verdict:
            return one
    return None


def _compared(one: Mapping[str, Any]) -> str:
    values = (one.get("baseline"), one.get("candidate"), one.get("difference"))
    before, after, difference = ("-" if value is None else _NUMBER.format(value) for value in values)
    low, high = one.get("low"), one.get("high")
    between = "" if low is None or high is None else f" ({low:+.4g} to {high:+.4g})"
    return f"{_text(one.get('verdict'))}: {before} before, {after} now, difference {difference}{between}"
