"""A run that was made elsewhere, kept as a run here: its answers and scores, as they are."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from itertools import islice
from typing import Any, TypeVar
from uuid import NAMESPACE_URL, uuid5

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.evaluation.aggregate import aggregate_means, run_summary
from modelyard.domain.evaluation.objects import ObjectRef, RefKind
from modelyard.domain.evaluation.run import EvaluationRun, Prediction, RunState, Score
from modelyard.domain.evaluation.scorers import checked_score
from modelyard.domain.record import EMPTY, truncate_for_storage
from modelyard.formats.json import as_json
from modelyard.platform.evaluations.stored_run import StoredRun, scores_of
from modelyard.platform.owned import store_texts
from modelyard.platform.paging import get_or_none, iter_columns
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Tx

T = TypeVar("T")
AT_ONCE = 64
"""How many answers one transaction writes."""

LONGEST = 10.0**9
"""The most seconds of an answer, some thirty years."""

MOST_TOKENS = 10**12
"""The most tokens of an answer: a store keeps the sum of millions of such counts."""

_LATEST = datetime.max.replace(tzinfo=UTC)


@attrs.frozen
class GivenScore:
    """A score as its scorer gave it, what the scorer said of it, and the `error` of one that failed."""

    value: Any = None
    comment: str = ""
    error: str = ""


@attrs.frozen
class GivenAnswer:
    """One trial of a row. `key` is its name in the run, `error` why the model failed, `seconds` how long it took."""

    key: str
    inputs: Mapping[str, Any]
    output: Any
    started_at: datetime
    seconds: float | None = None
    error: str = ""
    scores: Mapping[str, GivenScore] = attrs.field(factory=dict)
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost: Decimal | None = None


@attrs.frozen
class GivenRun:
    """A run by its references. `scorers` are those of its scorers, by their names. `reason` is why it failed.
    `prompts` are those that its rows were asked with. `source` is what it was imported from, in words."""

    id: str
    entity: str
    project: str
    evaluation: str
    model: str
    started_at: datetime
    finished_at: datetime
    scorers: Mapping[str, str]
    reason: str = ""
    prompts: Mapping[str, str] = EMPTY
    source: str = ""


def seconds_of(value: Any) -> float | None:
    """Return how long something took, as a stranger says; None unless it is a number from 0 to `LONGEST`."""
    return float(value) if type(value) in (int, float) and 0 <= value < LONGEST else None


def tokens_of(counts: Iterable[Any]) -> int | None:
    """Return the sum of the counts among these values, at most `MOST_TOKENS`; None if there are none."""
    known = [count for count in counts if type(count) is int and count >= 0]
    return min(sum(known), MOST_TOKENS) if known else None


def scorer_ref(place: tuple[str, str], name: str, version: str | None = None) -> str:
    """Return the reference of a scorer, by its name as it is, as far as a reference can have it."""
    return str(ObjectRef(*place, RefKind.OP, re.sub(r"[^\w.-]", "_", name)[:128] or "scorer", version))


def derived_id(*parts: str) -> str:
    """Return the same id for the same parts, so that what is given twice is kept once."""
    return str(uuid5(NAMESPACE_URL, "\n".join(("modelyard", *parts))))


def keep_run(runtime: Runtime, given: GivenRun, answers: Iterable[GivenAnswer], began: float) -> EvaluationRun:
    """Keep a run with its answers, and end it. Given again, it gets what it lacks. `began` is when it began to come, by
    the monotonic clock. Raises `InvalidInput` before anything is kept, `Unauthenticated` if its entity was deleted
    since, `RecordNotFound` if the run was, `StoreError`."""
    runtime.require_room()
    records = iter([_records(given, answer) for answer in answers])

    def transact(step: Callable[[Tx], T]) -> T:
        return store_texts(runtime, given.entity, step, began)

    transact(partial(_begin, given))
    known = iter_columns(runtime, Prediction, ("row_digest", "id"), "by_row", given.id)
    trials = Counter(row for row, *_ in known)
    while some := list(islice(records, AT_ONCE)):
        trials = transact(partial(_add, given.id, some, trials))
    summary = run_summary(aggregate_means(StoredRun(runtime, given.id).columns()), given.scorers)
    kept = {"prompts": given.prompts, "imported": given.source}
    summary = {**summary, **{name: value for name, value in kept.items() if value}}
    return transact(partial(_end, runtime, given, summary))


def _begin(given: GivenRun, tx: Tx) -> None:
    if get_or_none(tx, EvaluationRun, given.id) is None:
        place = given.entity, given.project
        tx.add(EvaluationRun(given.id, *place, given.evaluation, given.model, given.started_at))


def _add(run: str, some: Sequence[tuple[Prediction, Sequence[Score]]], before: Counter[str], tx: Tx) -> Counter[str]:
    tx.get(EvaluationRun, run)
    trials = before.copy()
    for new, scores in some:
        old = get_or_none(tx, Prediction, new.id)
        if old is None:
            tx.add(attrs.evolve(new, trial=trials[new.row_digest]))
            tx.add_all([attrs.evolve(score, trial=trials[new.row_digest]) for score in scores])
            trials[new.row_digest] += 1
        elif old.row_digest == new.row_digest:
            _complete(tx, old, new, scores)
    return trials


def _complete(tx: Tx, old: Prediction, new: Prediction, scores: Sequence[Score]) -> None:
    """Replace what is known of an answer by what is known now."""
    known = {score.id: score for score in scores_of(tx, old)}
    for score in scores:
        before = known.pop(score.id, None)
        placed = attrs.evolve(score, trial=old.trial)
        if before is None:
            tx.add(placed)
        else:
            tx.replace(attrs.evolve(placed, seq=before.seq))
    for gone in known:
        tx.remove(Score, gone)
    tx.replace(attrs.evolve(new, trial=old.trial, seq=old.seq))


def _end(runtime: Runtime, given: GivenRun, summary: Mapping[str, Any], tx: Tx) -> EvaluationRun:
    run = tx.get(EvaluationRun, given.id)
    if run.state is RunState.COMPLETED:
        ended = attrs.evolve(run, summary=summary)
    elif run.state is not RunState.RUNNING:
        return run
    elif given.reason:
        reason = truncate_for_storage(given.reason)[:2000]
        ended = attrs.evolve(run.stopped(RunState.FAILED, reason, given.finished_at), summary=summary)
    else:
        ended = run.finished(summary, given.finished_at)
    tx.replace(ended)
    if run.state is RunState.RUNNING:
        runtime.tell(tx, ended)
    return ended


def _records(given: GivenRun, answer: GivenAnswer) -> tuple[Prediction, list[Score]]:
    inputs = as_json(answer.inputs, at=(answer.key,))
    prediction = Prediction(
        derived_id(given.id, answer.key),
        given.entity,
        given.project,
        given.model,
        inputs,
        digest(inputs),
        answer.started_at,
        run_id=given.id,
        output=EMPTY if answer.error else {"value": as_json(answer.output, at=(answer.key,))},
        error=truncate_for_storage(answer.error) or None,
        finished_at=answer.started_at + min(timedelta(seconds=answer.seconds or 0), _LATEST - answer.started_at),
        latency=answer.seconds,
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
        cost=answer.cost,
    )
    return prediction, [] if answer.error else [*_scores(given, answer, prediction)]


def _scores(given: GivenRun, answer: GivenAnswer, prediction: Prediction) -> Iterator[Score]:
    for name, score in answer.scores.items():
        value, reason = _score_of(score, (answer.key, name))
        yield Score(
            derived_id(prediction.id, name),
            given.entity,
            given.project,
            prediction.id,
            given.scorers[name],
            prediction.finished_at or answer.started_at,
            run_id=given.id,
            value={} if score.error else {"value": value},
            error=truncate_for_storage(reason) or None,
            row_digest=prediction.row_digest,
            comment=truncate_for_storage(score.comment) or None,
        )


def _score_of(score: GivenScore, at: tuple[str, ...]) -> tuple[Any, str]:
    if score.error:
        return None, score.error
    try:
        return checked_score(as_json(score.value, at=at))
    except TypeError as wrong:
        return None, str(wrong)
