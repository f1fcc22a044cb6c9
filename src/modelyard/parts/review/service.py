"""`platform.review`: people label rows of runs; judges are checked and their numbers corrected by that."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs

from modelyard.domain.evaluation.aggregate import ReportOptions
from modelyard.domain.evaluation.filters import scorer_keys
from modelyard.domain.evaluation.objects import OneObject
from modelyard.domain.evaluation.run import EvaluationRun, Prediction, RunState
from modelyard.domain.evaluation.statistics import CONFIDENCE
from modelyard.domain.identity import Principal
from modelyard.domain.promotion import NotWorse
from modelyard.domain.record import Order
from modelyard.errors import Conflict, InvalidInput, NotFound, PromotionRefused
from modelyard.parts.review import estimates, judges, table_file
from modelyard.parts.review.agreement import Confusion
from modelyard.parts.review.estimates import JudgeCheck, JudgedDifference, JudgedMean, JudgedVerdict
from modelyard.parts.review.judges import JudgedRows
from modelyard.parts.review.labels import Disagreement, LabelledRows, ReviewProgress, RowToLabel
from modelyard.parts.review.meanings import VARIANTS, part_resource
from modelyard.parts.review.records import (
    MOST_ROWS,
    YES_OR_NO,
    Review,
    ReviewLabel,
    ReviewRow,
    checked_note,
    checked_person,
    is_number,
)
from modelyard.parts.review.watch_service import Watches
from modelyard.platform.evaluations.result import AnyRun, run_id_of
from modelyard.platform.evaluations.runs import find_run
from modelyard.platform.listing import Cursor, Listing
from modelyard.platform.models.promotion import PROD
from modelyard.platform.models.service import Models
from modelyard.platform.owned import remove_owned, store_texts
from modelyard.platform.paging import cursor_at, get_or_none, index_listing, iter_index, listed_entity, listed_index
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

MOST_SEED = 2**53


class Reviews:
    """The reviews that a principal may see: random samples of rows that people label.

    review = platform.review.start(run, rows=100)
    platform.review.label(review.id, "ann", 0, True)
    print(platform.review.estimate(run))
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    @property
    def watches(self) -> Watches:
        """Scorers that judge stored answers as they come."""
        return Watches(self._runtime, self._principal, self.estimate)

    # ---- reviews

    def start(
        self,
        run: AnyRun,
        scorer: str | None = None,
        *,
        rows: int = 100,
        seed: int = 0,
        choices: Sequence[float] | None = None,
        by_score: bool = False,
    ) -> Review:
        """Draw rows of a completed run for people to label, from those that a scorer scored.

        `scorer` is its name or reference, by default the run's first. The same seed draws the same rows of every run
        over the same rows, so that two runs can be compared. Labels are yes or no if the scorer's values are; else one
        of `choices`, by default the whole numbers between the least and the largest value if the scorer gives such, and
        any number if there are none. With `by_score`, about as many rows are drawn of each score, or of each quarter of
        the scores, and weigh less the more of these there are. Raises `NotFound`, `InvalidInput`, and `Conflict` for a
        run that goes on, and if the name of a model that judges may have meant another one when the run was scored.
        """
        found = find_run(self._runtime, self._principal, run_id_of(run))
        if found.state is not RunState.COMPLETED:
            raise Conflict(f"evaluation run {found.id} is {found.state}; people label completed runs")
        _check_number(rows, "rows", 1, MOST_ROWS)
        _check_number(seed, "seed", 0, MOST_SEED)
        judged = judges.judged_rows(self._runtime, found, scorer)
        asked = judges.asked_models(self._runtime, self._principal, judged.scorer)
        if moved := asked.moved(found):
            raise Conflict(moved)
        chance = min(1.0, rows / len(judged.rows))
        drawn = judged.drawn_by_score(seed, rows) if by_score else [(one, chance) for one in judged.drawn(seed, rows)]
        id_, now = self._runtime.ids(), self._runtime.clock.now()
        review = Review(
            id_,
            found.entity,
            found.project,
            found.id,
            judged.scorer,
            len(judged.rows),
            len(drawn),
            seed,
            self._principal.key_id or self._principal.name,
            now,
            judged.choices if choices is None else _checked_choices(choices, judged),
            asked.refs,
            by_score,
        )
        place = review.entity, review.project

        def step(tx: Tx) -> Review:
            if get_or_none(tx, EvaluationRun, found.id) is None:
                raise NotFound("Evaluation run", found.id)
            tx.add(review)
            for at, (row, chance) in enumerate(drawn):
                tx.add(ReviewRow(id_, at, *place, row.prediction_id, row.digest, row.value, chance))
            return self._review(tx, id_)

        return store_texts(self._runtime, review.entity, step)

    def get(self, review_id: str) -> Review:
        """Return a review. Raises `NotFound`."""
        return self._runtime.store.read(lambda snapshot: self._review(snapshot, review_id))

    def list(
        self,
        *,
        run: AnyRun | None = None,
        project: str | None = None,
        entity: str | None = None,
        order: Order = "asc",
    ) -> Listing[Review]:
        """List reviews, the oldest first, of one run or of all. Raises `NotFound`, `Forbidden`."""
        if run is not None:
            found = find_run(self._runtime, self._principal, run_id_of(run))
            index, where = "by_run", [found.id]
        else:
            index, *where = listed_index(listed_entity(self._principal, entity, project), project)
        place = partial(self._place, index)
        return index_listing(self._runtime, Review, index, *where, place=place, order=order, keep=self._sees)

    def delete(self, review_id: str) -> Review:
        """Delete a review with its labels. Raises `NotFound`."""

        def step(tx: Tx) -> Review:
            review = self._review(tx, review_id)
            remove_owned(tx, self._runtime.records, review)
            tx.remove(Review, review.id)
            return review

        return self._runtime.store.transact(step)

    def progress(self, review_id: str) -> ReviewProgress:
        """Return how far people are. Raises `NotFound`."""
        return self._labelled(review_id).progress

    # ---- labelling

    def rows(self, review_id: str, person: str) -> Sequence[RowToLabel]:
        """Return the rows as a person labels them: in the review's order, with the person's own labels, and without
        those of others and the judge's. Raises `NotFound`, `InvalidInput`."""
        found, name = self._labelled(review_id), checked_person(person)
        return self._runtime.store.read(
            lambda snapshot: [
                _shown(snapshot, row, labels.get(name)) for row, labels in zip(found.rows, found.labels, strict=True)
            ]
        )

    def row(self, review_id: str, person: str, row: int) -> RowToLabel:
        """Return one row as a person labels it. Raises `NotFound`, `InvalidInput`."""
        name = checked_person(person)

        def read(snapshot: Snapshot) -> RowToLabel:
            at = _checked_row(self._review(snapshot, review_id), row)
            found = snapshot.get(ReviewRow, review_id, at)
            return _shown(snapshot, found, get_or_none(snapshot, ReviewLabel, review_id, at, name))

        return self._runtime.store.read(read)

    def next(self, review_id: str, person: str) -> RowToLabel | None:
        """Return the first row that a person has not labelled; None at the end. Raises `NotFound`, `InvalidInput`."""
        found, name = self._labelled(review_id), checked_person(person)
        at = next((at for at, labels in enumerate(found.labels) if name not in labels), None)
        return None if at is None else self.row(review_id, name, at)

    def label(self, review_id: str, person: str, row: int, value: float | None, note: str = "") -> ReviewLabel:
        """Keep what a person says of a row: True or False, a number, or None if they cannot say. Their earlier label is
        replaced, until they have labelled every row and may see the others'. Raises `NotFound`, `InvalidInput`,
        `Conflict`."""
        return self._keep(review_id, person, [(row, value, note)])[0]

    def write_csv(self, review_id: str, person: str) -> str:
        """Return the rows for a person to label as CSV. Raises `NotFound`, `InvalidInput`."""
        return table_file.written(self.get(review_id), self.rows(review_id, person))

    def read_csv(self, review_id: str, person: str, text: str) -> int:
        """Keep a person's labels from CSV, all or none; lines without a label are left out. Returns how many there are.
        Raises as `label` does, with the place of what is wrong."""
        return len(self._keep(review_id, person, [*table_file.read(self.get(review_id), text)]))

    def disagreements(self, review_id: str, person: str | None = None) -> Sequence[Disagreement]:
        """Return the rows of which people, or people and the judge, say different things. A person sees them once they
        have labelled every row; without a person, everybody who has begun must have. Raises `NotFound`,
        `InvalidInput`, `Conflict`."""
        found = self._labelled(review_id)
        _check_done(found, person)
        return found.disagreements()

    def results(self, review_id: str, person: str | None = None, *, confidence: float = CONFIDENCE) -> JudgedMean:
        """Return what the labels of one review show of its run, as `estimate` does. Seen as disagreements are. Raises
        `NotFound`, `InvalidInput`, `Conflict`."""
        ReportOptions(confidence=confidence)
        found = self._labelled(review_id)
        _check_done(found, person)
        run = find_run(self._runtime, self._principal, found.review.run_id)
        return self._estimated(run, found.review.scorer, confidence, only=review_id)

    def _keep(
        self, review_id: str, person: str, given: Sequence[tuple[int, float | None, str]]
    ) -> Sequence[ReviewLabel]:
        name, now, review = checked_person(person), self._runtime.clock.now(), self.get(review_id)
        places = (review.id, review.entity, review.project)
        labels = [
            ReviewLabel(
                places[0], _checked_row(review, row), name, *places[1:], review.checked(value), checked_note(note), now
            )
            for row, value, note in given
        ]

        def step(tx: Tx) -> Sequence[ReviewLabel]:
            found = LabelledRows.read(tx, self._review(tx, review_id))
            if found.done(name) and any(_differs(found, one) for one in labels):
                raise Conflict(f"{name} has labelled every row and may have seen what others say; their labels stay")
            for one in labels:
                old = get_or_none(tx, ReviewLabel, one.review_id, one.place, name)
                (tx.add if old is None else tx.replace)(one)
            return labels

        return store_texts(self._runtime, review.entity, step)

    # ---- judges

    def check(self, run: AnyRun, scorer: str | None = None, *, confidence: float = CONFIDENCE) -> JudgeCheck:
        """Return whether people have checked the version of a scorer that a run has, by labels of any run, and how far
        they agree. Raises `NotFound`, `InvalidInput`."""
        ReportOptions(confidence=confidence)
        found = find_run(self._runtime, self._principal, run_id_of(run))
        return self._checked(found, judges.judged_rows(self._runtime, found, scorer), confidence)[0]

    def estimate(
        self,
        run: AnyRun,
        scorer: str | None = None,
        *,
        confidence: float = CONFIDENCE,
        cluster_by: str | None = None,
    ) -> JudgedMean:
        """Return the mean of a run with an interval that has the judge's error in it: from labels of its own rows, or
        for yes and no from those of other runs by the same version of the judge. Rows that have the input `cluster_by`
        in common go together, as the trials of a row do. Raises `NotFound`, `InvalidInput`."""
        ReportOptions(confidence=confidence, cluster_by=cluster_by)
        found = find_run(self._runtime, self._principal, run_id_of(run))
        return self._estimated(found, scorer, confidence, cluster_by=cluster_by)

    def _estimated(
        self,
        found: EvaluationRun,
        scorer: str | None,
        confidence: float,
        only: str | None = None,
        cluster_by: str | None = None,
    ) -> JudgedMean:
        judged = judges.judged_rows(self._runtime, found, scorer, cluster_by)
        check, labels = self._checked(found, judged, confidence, only)
        own = _most([one for one in labels if one.review.run_id == found.id])
        if own is not None or not check.checked:
            corrected = estimates.corrected_mean(judged, own, confidence)
            return JudgedMean(found.id, check, corrected, 0 if own is None else sum(not row for row in own.ratings))
        known = sum((one.confusion for one in labels if one.review.yes_no and not one.review.by_score), Confusion())
        return JudgedMean(found.id, check, estimates.corrected_elsewhere(judged, known, confidence))

    def compare(
        self,
        baseline: AnyRun,
        candidate: AnyRun,
        scorer: str | None = None,
        *,
        lower_is_better: bool = False,
        confidence: float = CONFIDENCE,
        cluster_by: str | None = None,
    ) -> JudgedDifference:
        """Return the difference of two runs, candidate minus baseline, with an interval that has the judge's error in
        it, from rows that are labelled in both. `cluster_by` is as in `estimate`. Raises
        `NotFound`, `InvalidInput`, also if two versions of the scorer judged the runs."""
        ReportOptions(confidence=confidence, cluster_by=cluster_by)
        runs = [find_run(self._runtime, self._principal, run_id_of(run)) for run in (baseline, candidate)]
        before, after = (judges.judged_rows(self._runtime, run, scorer, cluster_by) for run in runs)
        if before.scorer != after.scorer:
            msg = "judged the two runs in two versions, which cannot be compared; rescore one of them"
            raise InvalidInput.at("scorer", msg=msg)
        if not before.rows.keys() & after.rows.keys():
            raise InvalidInput.at("candidate", msg="has no scored row in common with the baseline")
        check, labels = self._checked(runs[1], after, confidence)
        both = [_most([one for one in labels if one.review.run_id == run.id]) for run in runs]
        known = [one for one in both if one is not None]
        given = known if len(known) == 2 else []
        corrected = estimates.corrected_difference(before, after, given, confidence)
        return JudgedDifference(runs[0].id, runs[1].id, check, corrected, lower_is_better)

    def assert_not_worse(
        self,
        *,
        baseline: AnyRun,
        candidate: AnyRun,
        margin: float,
        scorer: str | None = None,
        lower_is_better: bool = False,
        confidence: float = CONFIDENCE,
        cluster_by: str | None = None,
    ) -> JudgedDifference:
        """Fail a test unless the candidate is shown to be at most `margin` worse, by the whole interval. Raises
        AssertionError, also if the judge is not checked or cannot tell a difference of this size; else as `compare`."""
        _check_margin(margin)
        kept: Any = {"lower_is_better": lower_is_better, "confidence": confidence, "cluster_by": cluster_by}
        found = self.compare(baseline, candidate, scorer, **kept)
        if found.verdict(margin) is not JudgedVerdict.NOT_WORSE:
            raise AssertionError(estimates.refusal_text(found, margin))
        return found

    def not_worse(
        self,
        evaluation: OneObject,
        margin: float,
        scorer: str | None = None,
        *,
        lower_is_better: bool = False,
        confidence: float = CONFIDENCE,
    ) -> NotWorse:
        """Return a requirement of a promotion, of a model or a variant: that the newest runs of both versions on an
        evaluation show, corrected by labels, that the new one is at most `margin` worse. Raises `InvalidInput`."""
        _check_margin(margin)
        ReportOptions(confidence=confidence)
        return NotWorseAsLabelled(evaluation, None, scorer, margin, confidence, lower=lower_is_better)

    def promote(
        self,
        name: str,
        number: int,
        evaluation: OneObject,
        margin: float,
        scorer: str | None = None,
        *,
        alias: str = PROD,
        lower_is_better: bool = False,
        confidence: float = CONFIDENCE,
    ) -> Any:
        """Point an alias of a model at the step of this number, or of a variant ("variants/desk/support") at that
        version, if labels show it to be at most `margin` worse, as `not_worse` says. Returns the change. Raises
        `NotFound`, `InvalidInput`, `PromotionRefused`, `Conflict`."""
        kept: Any = {"lower_is_better": lower_is_better, "confidence": confidence}
        require = self.not_worse(evaluation, margin, scorer, **kept)
        variant = name.removeprefix(f"{VARIANTS}/")
        if variant != name and "/" in variant:
            variants = part_resource(self._runtime, self._principal, VARIANTS)
            if variants is not None:
                return variants.promote(variant, number, alias, require=require)
        return Models(self._runtime, self._principal).promote(name, number, alias, require=require)

    def _checked(
        self, run: EvaluationRun, judged: JudgedRows, confidence: float, only: str | None = None
    ) -> tuple[JudgeCheck, Sequence[LabelledRows]]:
        """Return the check of a judge, and the labels of its version that count, perhaps of one review `only`."""
        asked = judges.asked_models(self._runtime, self._principal, judged.scorer)
        every = self._runtime.store.read(partial(self._of_scorer, run, judged.scorer))
        said = [one for one in every if any(one.ratings) and only in (None, one.review.id)]
        same = [one for one in said if judges.same_judge(one.review, judged.scorer, asked.refs)]
        same = [one for one in same if not asked.moved(find_run(self._runtime, self._principal, one.review.run_id))]
        reason = asked.moved(run) if same else ""
        if same and not reason:
            return JudgeCheck(judged.scorer, asked.refs, True, "", estimates.agreement(same, confidence)), same
        reason = reason or judges.what_changed([one.review for one in said], judged.scorer, asked.refs)
        return JudgeCheck(judged.scorer, asked.refs, False, reason), []

    def _of_scorer(self, run: EvaluationRun, scorer: str, snapshot: Snapshot) -> Sequence[LabelledRows]:
        """Return the reviews of a scorer in the run's project, of any version, the oldest first."""
        name = scorer.rpartition(":")[0]
        reviews = iter_index(snapshot, Review, "by_project", run.entity, run.project)
        return [LabelledRows.read(snapshot, one) for one in reviews if one.scorer.rpartition(":")[0] == name]

    # ---- what is seen

    def _labelled(self, review_id: str) -> LabelledRows:
        return self._runtime.store.read(lambda snapshot: LabelledRows.read(snapshot, self._review(snapshot, review_id)))

    def _review(self, snapshot: Snapshot, review_id: str) -> Review:
        found = get_or_none(snapshot, Review, review_id)
        if found is None or not self._sees(found):
            raise NotFound("Review", review_id)
        return found

    def _sees(self, review: Review) -> bool:
        return self._principal.scope.covers(review.entity, review.project)

    def _place(self, index: str, review_id: str, snapshot: Snapshot) -> Cursor:
        return cursor_at(Review, index, self._review(snapshot, review_id))


@attrs.frozen
class NotWorseAsLabelled(NotWorse):
    """That the candidate is shown to be at most `margin` worse, by a difference that is corrected by labels. `metric`
    is the scorer, by default the run's first; `lower`: lower values are better."""

    lower: bool = False

    def decide(self, runtime: Any, by: Any, *runs: EvaluationRun) -> Mapping[str, Any]:
        """Return the evidence. Raises `PromotionRefused`, also if the judge is not checked or cannot tell."""
        baseline, candidate = runs
        kept: Any = {"lower_is_better": self.lower, "confidence": self.confidence}
        found = Reviews(runtime, by).compare(baseline, candidate, self.metric, **kept)
        if (verdict := found.verdict(self.margin)) is not JudgedVerdict.NOT_WORSE:
            raise PromotionRefused(estimates.refusal_text(found, self.margin))
        return {
            "outcome": verdict.value,
            "evaluation": candidate.evaluation,
            "candidate_run": candidate.id,
            "baseline_run": baseline.id,
            "margin": self.margin,
            "confidence": self.confidence,
            "rows": found.corrected.rows,
            "metrics": {scorer_keys(found.check.scorer)[0]: estimates.numbers_of(found)},
        }


def _most(reviews: Iterable[LabelledRows]) -> LabelledRows | None:
    """Return the review with the most rows that count, the oldest of several."""
    return max(reviews, key=lambda one: sum(map(bool, one.ratings)), default=None)


def _shown(snapshot: Snapshot, row: ReviewRow, own: ReviewLabel | None) -> RowToLabel:
    prediction = get_or_none(snapshot, Prediction, row.prediction_id)
    inputs: Any = {} if prediction is None else prediction.inputs
    output = None if prediction is None else prediction.output.get("value")
    said = (False, None, "") if own is None else (True, own.value, own.note)
    return RowToLabel(row.place, inputs, output, *said)


def _check_done(found: LabelledRows, person: str | None) -> None:
    """Refuse to show what others and the judge say to somebody who has not labelled every row."""
    if person is None:
        begun = found.progress.people
        if not begun or not all(map(found.done, begun)):
            raise Conflict("this is shown once everybody who has begun to label has labelled every row")
    elif not found.done(checked_person(person)):
        raise Conflict(f"{person} has not labelled every row yet, and sees what others say after that")


def _differs(found: LabelledRows, label: ReviewLabel) -> bool:
    old = found.labels[label.place].get(label.person)
    return old is None or (old.value, old.note) != (label.value, label.note)


def _checked_row(review: Review, row: object) -> int:
    if isinstance(row, bool) or not isinstance(row, int) or not 0 <= row < review.size:
        raise InvalidInput.at("row", msg=f"must be the number of a row, 0 to {review.size - 1}")
    return row


def _check_number(value: object, name: str, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidInput.at(name, msg=f"must be a whole number, {least} to {most}")


def _check_margin(margin: object) -> None:
    if isinstance(margin, bool) or not is_number(margin) or not margin > 0:
        raise InvalidInput.at("margin", msg="must be more than 0: by how much the candidate may be worse")


def _checked_choices(choices: object, judged: JudgedRows) -> tuple[float, ...]:
    if not isinstance(choices, Sequence) or not all(map(is_number, choices)):
        raise InvalidInput.at("choices", msg="must be at most 100 numbers in rising order")
    numbers = tuple(map(float, choices))
    if judged.yes_no and numbers != YES_OR_NO:
        raise InvalidInput.at("choices", msg="are yes and no, as the scorer's values are")
    if len(numbers) > 100 or sorted({*numbers}) != [*numbers]:
        raise InvalidInput.at("choices", msg="must be at most 100 numbers in rising order")
    if numbers == YES_OR_NO and not judged.of_yes_and_no:
        raise InvalidInput.at("choices", msg="are those of yes and no, and the scorer gave other numbers")
    return numbers
