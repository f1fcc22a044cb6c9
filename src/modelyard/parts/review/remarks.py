"""What the reports of a run, or of two, say besides: what the labels of their rows show of the scores."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from modelyard.domain.evaluation.filters import scorer_keys
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.identity import Principal, Scope
from modelyard.errors import InvalidInput
from modelyard.parts.review.estimates import JudgedDifference, JudgedVerdict
from modelyard.parts.review.records import Review
from modelyard.parts.review.service import Reviews
from modelyard.platform.paging import iter_index
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot

NAME = "review"


def remarks(runtime: Runtime, runs: Sequence[EvaluationRun], options: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each scorer of the last run whose rows people label in its project: its mean, or the difference
    of the two runs, corrected by labels; or why these say nothing of it."""
    scorers = (runs[-1].summary or {}).get("scorers") or ()
    labelled = runtime.store.read(partial(_labelled, runs[-1])) if scorers else ()
    reviews = Reviews(runtime, Principal(NAME, runs[-1].entity, Scope(None)))
    kept = {name: options[name] for name in ("confidence", "cluster_by") if options.get(name) is not None}
    ask: Any = reviews.estimate if len(runs) == 1 else reviews.compare
    for name in scorers:
        if name in labelled:
            with suppress(InvalidInput):  # it gives no numbers, or the runs have no row in common
                yield f"{name}, corrected by what people say: {_told(ask(*runs, name, **kept))}"


def _labelled(run: EvaluationRun, snapshot: Snapshot) -> set[str]:
    reviews = iter_index(snapshot, Review, "by_project", run.entity, run.project)
    return {scorer_keys(one.scorer)[0] for one in reviews}


def _told(found: Any) -> str:
    between = found.corrected.interval
    if isinstance(found, JudgedDifference) and between is not None and between.low < 0 < between.high:
        return f"{found}; {JudgedVerdict.CANNOT_TELL}"
    return str(found)
