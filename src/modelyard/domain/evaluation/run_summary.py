"""What a run took: seconds, tokens and money, by model and by role (specification 4.5)."""

from collections.abc import Iterable, Mapping
from typing import Any

from modelyard.domain import usage as money
from modelyard.domain.evaluation.aggregate import Aggregate, MetricSummary
from modelyard.domain.evaluation.metrics import Metric
from modelyard.domain.evaluation.references import same_scheme


def run_summary(found: Aggregate, scorers: Mapping[str, str]) -> Mapping[str, Any]:
    """Summarise a run: the counts and the mean of each metric, the headline before them, and the usage by role.

    `scorers` are the references of the scorers' versions by name; the first is the headline. One that answers objects
    has an entry for each leaf, "judge.tone", and no mean as a headline.
    """
    entries = {name: entry for item in scorers.items() for name, entry in _entries(found, *item).items()}
    headline = next(iter(scorers), None)
    return {
        **({} if headline is None else {"scorer": headline, "trials": found.trials, "mean": None}),
        **entries.get(headline or "", {}),
        "scorers": entries,
        "usage": {role: _used(found, role) for role in ("model", "judge")},
        "possibly_repeated": found.possibly_repeated,
    }


def _entries(found: Aggregate, name: str, scorer: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the metrics of a scorer by name: the scorer's own, or one for each leaf of its values."""
    whole = Metric(same_scheme(scorer))
    known = [one for one in found.metrics if one.metric.scorer == whole.scorer]
    silent = MetricSummary(whole, name, None, 0, found.trials - found.model_errors, 0, found.model_errors)
    return {".".join((name, *one.metric.path)): _entry(one) for one in known or [silent]}


def _entry(one: MetricSummary) -> Mapping[str, Any]:
    """`scored + unscored + scorer_errors + model_errors = trials`."""
    return {
        "trials": one.trials,
        "scored": one.scored,
        "unscored": one.unscored,
        "scorer_errors": one.scorer_errors,
        "model_errors": one.model_errors,
        "mean": one.mean,
    }


def _used(found: Aggregate, role: str) -> Mapping[str, Any]:
    """Tokens and USD in one role, without what was inherited; None where nothing was reported."""
    used = [one for one in found.usage if one.role == role and not one.inherited]
    costs = [one.cost for one in used if one.cost is not None]
    return {
        "prompt_tokens": _total(one.prompt_tokens for one in used),
        "completion_tokens": _total(one.completion_tokens for one in used),
        "cost": f"{money.add(costs):f}" if costs else None,
    }


def _total(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
