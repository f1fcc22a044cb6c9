"""What the events of a training job say of it: what it trained, on how much, and how fast."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from modelyard.domain.training import TRAINING_STARTED, TrainingEvent
from modelyard.errors import NotFound
from modelyard.parts.dashboard.view import View
from modelyard.report.numbers import count_text

POINTS = 600
"""About how many steps of a job are read for its speed."""

_FIRST = 3
"""Among so many first events is the one with which a training begins."""


def trained_facts(view: View, job_id: str | None) -> Iterator[tuple[str, object]]:
    """Yield the adapter, the rows and tokens, and the speed of a job, as far as it said them."""
    begun = None if job_id is None else _begun(view, job_id)
    if job_id is None or begun is None:
        return
    about = begun.data.get("about", {})
    if "lora_rank" in about:
        yield "adapter", f"rank {about['lora_rank']}, alpha {about['lora_alpha']:g}"
    elif "trained_parameters" in about:
        yield "trained", f"all {count_text(about['trained_parameters'])} weights"
    if "rows" in about:
        yield "rows", joined_counts(about)
    if "tokens" in about:
        yield "tokens", f"{count_text(about['tokens'])} to train an epoch; the longest row has {about['longest']:,}"
    if speed := _speed(view, job_id, begun):
        yield "speed", f"{count_text(round(speed)) if speed >= 10 else f'{speed:.2g}'} trained tokens a second"
    if "device" in about:
        yield "on", f"{about['device']}, {about['dtype']}"


def joined_counts(about: Mapping[str, Any]) -> str:
    """Return how many rows there are, and how many of them were too long."""
    more = [f"{count_text(about[name])} {name}" for name in ("truncated", "dropped") if about.get(name)]
    return ", ".join([count_text(about["rows"]), *more])


def _begun(view: View, job_id: str) -> TrainingEvent | None:
    try:
        first = islice(view.platform.training.events(job_id), _FIRST)
        return next((one for one in first if one.type == TRAINING_STARTED), None)
    except NotFound:
        return None


def _speed(view: View, job_id: str, begun: TrainingEvent) -> float | None:
    """Return the trained tokens of a second, from the beginning to the last step; None if it is not known."""
    rows = [row for row in view.platform.training.job(job_id).metrics(POINTS) if "num_trainable_tokens" in row.values]
    seconds = (rows[-1].created_at - begun.created_at).total_seconds() if rows else 0.0
    if seconds <= 0:
        return None
    mean = sum(row.values["num_trainable_tokens"] for row in rows) / len(rows)
    return float(mean * rows[-1].step / seconds)
