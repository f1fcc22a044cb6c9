"""A run's rows as one of its scorers scored them, and what that scorer is: its version, and the models that it asks."""

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from itertools import chain, islice, zip_longest
from statistics import quantiles
from typing import Any

import attrs

from modelyard.domain.canonical import canonical_json
from modelyard.domain.evaluation.filters import scorer_keys
from modelyard.domain.evaluation.objects import ObjectKind, ObjectRef, same_scheme
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.evaluation.scorer_rules import Combined, rule_of
from modelyard.domain.evaluation.scorers import DeclarativeScorer, LlmJudge
from modelyard.domain.identity import Principal
from modelyard.errors import InvalidInput, ModelyardError, nearest
from modelyard.parts.review import meanings
from modelyard.parts.review.records import YES_OR_NO, Review
from modelyard.platform.evaluations.model_under_test import CompletionModel
from modelyard.platform.evaluations.objects import Objects
from modelyard.platform.evaluations.stored_run import StoredRun
from modelyard.platform.runtime import Runtime

GONE = "it is gone"
"""What a model is now that cannot be asked any more."""

MOST_CHOICES = 10
MOST_STRATA = 5


@attrs.frozen
class JudgedRow:
    """A row of a run with the value that a scorer gave it. `number` tells equal rows of a run apart, and the trials of
    a row, from 0. Rows of one `cluster` go together; "" is a row by itself."""

    digest: str
    prediction_id: str
    value: float
    number: int = 0
    cluster: str = ""


Key = tuple[str, int]
"""What is the same row of two runs: the digest, and the number among equal rows."""


@attrs.frozen(slots=False)
class JudgedRows:
    """The scored rows of a run, of one scorer by its reference. `unscored` rows have no value."""

    scorer: str
    rows: Mapping[Key, JudgedRow]
    yes_no: bool
    unscored: int

    @property
    def of_yes_and_no(self) -> bool:
        """Whether all values are 0 or 1."""
        return all(row.value in YES_OR_NO for row in self.rows.values())

    @property
    def choices(self) -> tuple[float, ...]:
        """What labels may be: yes or no, or a few whole numbers if the scorer gave only such; () for any number."""
        if self.yes_no:
            return YES_OR_NO
        values = [row.value for row in self.rows.values()]
        low, high = min(values), max(values)
        if not 0 < high - low < MOST_CHOICES or not all(value.is_integer() for value in values):
            return ()
        return tuple(map(float, range(int(low), int(high) + 1)))

    @cached_property
    def keys(self) -> Mapping[str, Key]:
        """The keys of the rows by the ids of their predictions."""
        return {row.prediction_id: key for key, row in self.rows.items()}

    @property
    def clustered(self) -> bool:
        """Whether some rows go together with others."""
        return any(row.cluster for row in self.rows.values())

    @cached_property
    def cuts(self) -> tuple[float, ...]:
        """Where strata by score end, which that value begins: between few values, or else at quarters of the rows."""
        values = sorted(row.value for row in self.rows.values())
        few = sorted({*values})
        return tuple(few[1:]) if len(few) <= MOST_STRATA else tuple(sorted({*quantiles(values, n=4)} - {values[0]}))

    def stratum(self, value: float) -> int:
        """Return the stratum of a score, from 0."""
        return bisect_right(self.cuts, value)

    def drawn_by_score(self, seed: int, count: int) -> list[tuple[JudgedRow, float]]:
        """Draw rows as `drawn` does, one of each stratum by turns; each with the chance that it had."""
        strata: dict[int, list[JudgedRow]] = {}
        for row in self.drawn(seed, len(self.rows)):
            strata.setdefault(self.stratum(row.value), []).append(row)
        turns = chain.from_iterable(zip_longest(*(strata[at] for at in sorted(strata))))
        found = list(islice((row for row in turns if row is not None), count))
        taken = Counter(self.stratum(row.value) for row in found)
        return [(row, taken[at] / len(strata[at])) for row in found for at in [self.stratum(row.value)]]

    def drawn(self, seed: int, count: int) -> list[JudgedRow]:
        """Draw rows at random without replacement, in random order. The same seed draws the same rows of all runs over
        the same rows, so that these can be compared: each row has a number of its own, and the lowest are drawn."""

        def number(row: JudgedRow) -> bytes:
            again = f":{row.number}" if row.number else ""
            return hashlib.sha256(f"{seed}:{row.digest}{again}".encode()).digest()

        return sorted(self.rows.values(), key=number)[:count]


def judged_rows(
    runtime: Runtime, run: EvaluationRun, scorer: str | None = None, cluster_by: str | None = None
) -> JudgedRows:
    """Read the rows of a run with the values of the scorer of this name or reference, by default the first. Rows that
    have the input `cluster_by` in common go together, and the trials of a row do. Raises `InvalidInput` for a scorer
    that the run lacks or that gives no numbers, and for an input that a row lacks."""
    wanted, stored = _wanted(runtime, run, scorer), StoredRun(runtime, run.id)
    rows: dict[Key, JudgedRow] = {}
    bools, unscored, seen = True, 0, Counter[str]()
    several = False
    for prediction, scores in stored.columns() if cluster_by is None else stored.full():
        several = several or bool(prediction.trial)
        digest = prediction.row_digest
        seen[digest] += 1
        value = next((one.value.get("value") for one in scores if same_scheme(one.scorer) == wanted), None)
        if not isinstance(value, bool | int | float):
            unscored += 1
            continue
        bools = bools and isinstance(value, bool)
        key = digest, seen[digest] - 1
        cluster = "" if cluster_by is None else _cluster(prediction, cluster_by)
        rows[key] = JudgedRow(digest, prediction.id, float(value), key[1], cluster)
    if not rows:
        raise InvalidInput.at("scorer", msg=f"gave none of the {seen.total()} rows a number, or yes or no")
    if several and cluster_by is None:
        rows = {key: attrs.evolve(row, cluster=row.digest) for key, row in rows.items()}
    return JudgedRows(wanted, rows, bools, unscored)


def _cluster(prediction: Any, field: str) -> str:
    if field not in prediction.inputs:
        raise InvalidInput.at("cluster_by", msg=f"the row {prediction.row_digest} has no input {field!r}")
    return canonical_json(prediction.inputs[field])


def _wanted(runtime: Runtime, run: EvaluationRun, scorer: str | None) -> str:
    known: dict[str, str] = {}
    for ref in StoredRun(runtime, run.id).scorers():
        known.setdefault(scorer_keys(ref)[0], same_scheme(ref))
    first = (run.summary or {}).get("scorer") if scorer is None else scorer
    if first is None and known:
        return next(iter(known.values()))
    if first in known:
        return known[str(first)]
    if isinstance(first, str) and same_scheme(first) in known.values():
        return same_scheme(first)
    meant = nearest(str(first), known)
    raise InvalidInput.at("scorer", msg=f"must be one of the run's: {', '.join(known) or 'it has none'}{meant}")


# ---- what a judge is


@attrs.frozen
class AskedModels:
    """The models that a scorer asks, by their names in it, each with the reference of the version that the name means
    now. `since` is when the last of these names came to mean that, None if they never meant anything else."""

    refs: Mapping[str, str] = attrs.field(factory=dict)
    since: datetime | None = None

    def moved(self, run: EvaluationRun) -> str:
        """Return why a run was perhaps scored by other models; "" if it was not."""
        if self.since is None or self.since <= run.started_at:
            return ""
        names = " and ".join(self.refs)
        return f"{names} has come to mean another model since the run was scored, or while it was; rescore the run"


def asked_models(runtime: Runtime, principal: Principal, scorer: str) -> AskedModels:
    """Return the models that a scorer asks; a scorer that is a function, or that asks none, has none."""
    ref = ObjectRef.parse(scorer)
    found: dict[str, str] = {}
    times: list[datetime] = []
    with suppress(ModelyardError):
        data = Objects(runtime, principal).resolve(ObjectKind.SCORER, scorer).content.get("scorer")
        if ref is not None and isinstance(data, Mapping):
            theirs = attrs.evolve(principal, entity=ref.entity)  # names mean what they do there, whoever asks
            for one in judges_of(rule_of(data)):
                found[one.model] = _meant(runtime, theirs, one, (ref.entity, ref.project))
                times += meanings.since(runtime, theirs, one.model, found[one.model])
    return AskedModels(found, max(times, default=None))


def judges_of(rule: DeclarativeScorer) -> Iterator[LlmJudge]:
    """Yield the judges that a scorer asks, also those in its parts."""
    if isinstance(rule, LlmJudge):
        yield rule
    elif isinstance(rule, Combined):
        for part in rule.parts.values():
            yield from judges_of(part)


def _meant(runtime: Runtime, principal: Principal, judge: LlmJudge, place: tuple[str, str]) -> str:
    try:
        return str(CompletionModel.of(runtime, principal, judge.model, place, judge.options).ref)
    except ModelyardError:
        return GONE


def same_judge(review: Review, scorer: str, models: Mapping[str, str]) -> bool:
    """Return whether the labels of a review are of this version of a scorer, that asks these models."""
    return review.scorer == scorer and dict(review.models) == dict(models)


def what_changed(reviews: Sequence[Review], scorer: str, models: Mapping[str, str]) -> str:
    """Return why these reviews, of other versions of a scorer, say nothing of this one; the newest come last."""
    if not reviews:
        return "nobody has labelled rows that it scored"
    last = reviews[-1]
    if last.scorer != scorer:
        return "its prompt, model or settings have changed since people labelled rows that it scored"
    changed = [f"{name} was {was} and is {models.get(name, GONE)}" for name, was in last.models.items()]
    return f"its model has changed since people labelled rows that it scored: {'; '.join(changed)}"
