"""What feedback and spans say of a model's answer as a number from 0 to 1, told to the parts that listen."""

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from modelyard.domain.evaluation.objects import ObjectRef, RefKind
from modelyard.domain.identity import Scope
from modelyard.parts.traces.records import Feedback, TracedCall
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

MOST = 100
"""How many feedbacks on a call are looked at when its answer becomes known."""

EVALUATED = "gen_ai.evaluation.result"
"""The event of a span that says what an answer is worth, by OpenTelemetry's conventions."""

_NAME, _VALUE, _ANSWER = "gen_ai.evaluation.name", "gen_ai.evaluation.score.value", "gen_ai.response.id"
_REACTION, _RUNNABLE = "wandb.reaction.", "wandb.runnable."
_THUMBS = {"\N{THUMBS UP SIGN}": 1.0, "\N{THUMBS DOWN SIGN}": 0.0}
_MEMBERS = ("value", "score", "passed", "up")


@attrs.frozen
class Opinion:
    """What somebody who may see `scope` says of the answer with an id: `value` of a metric, from 0 to 1."""

    completion_id: str
    metric: str
    value: float
    entity: str
    scope: Scope


def tell_feedback(runtime: Runtime, tx: Tx, said: Feedback, scope: Scope) -> None:
    """Tell what feedback says of the answer that its call returned, if that is known."""
    about = ObjectRef.parse(said.ref)
    if about is None or about.kind is not RefKind.CALL or (about.entity, about.project) != (said.entity, said.project):
        return
    call = get_or_none(tx, TracedCall, said.entity, said.project, about.name)
    found = None if call is None or call.completion_id is None else said_by(said.type, said.payload)
    if call is not None and call.completion_id is not None and found is not None:
        runtime.tell(tx, Opinion(call.completion_id, *found, said.entity, scope))


def tell_call(runtime: Runtime, tx: Tx, call: TracedCall, scope: Scope) -> None:
    """Tell what a call says of answers, and the feedback that came before its own was known."""
    for answer, metric, value in _evaluated(call):
        runtime.tell(tx, Opinion(answer, metric, value, call.entity, scope))
    if call.completion_id is None:
        return
    for said in _on(tx, call):
        found = said_by(said.type, said.payload)
        if found is not None:
            runtime.tell(tx, Opinion(call.completion_id, *found, call.entity, scope))


def _on(snapshot: Snapshot, call: TracedCall) -> list[Feedback]:
    return snapshot.page(Feedback, "by_ref", call.entity, call.project, call.ref, limit=MOST)


def _evaluated(call: TracedCall) -> Iterator[tuple[str, str, float]]:
    """Yield what a span and its events say of answers."""
    events = call.more.get("otel", {}).get("events", ()) if call.more else ()
    named = [event.get("attributes", {}) for event in events if event.get("name") == EVALUATED]
    for said in (call.attributes, *named):
        answer, metric, value = said.get(_ANSWER, call.completion_id), said.get(_NAME), _share(said.get(_VALUE))
        if isinstance(answer, str) and isinstance(metric, str) and value is not None:
            yield answer, metric, value


def said_by(type: str, payload: Mapping[str, Any]) -> tuple[str, float] | None:
    """Return the metric and the value that feedback means; None for what is no number from 0 to 1.

    >>> said_by("wandb.runnable.polite", {"output": {"score": 0.5}})
    ('polite', 0.5)
    """
    if type.startswith(_REACTION):
        value = _THUMBS.get(str(payload.get("emoji", ""))[:1])
        return None if value is None else ("thumbs", value)
    metric, given = (type.removeprefix(_RUNNABLE), payload.get("output")) if _RUNNABLE in type else (type, payload)
    if isinstance(given, Mapping):
        given = next((given[name] for name in _MEMBERS if name in given), None)
    found = _share(given)
    return None if found is None else (metric, found)


def _share(value: object) -> float | None:
    return float(value) if isinstance(value, bool | int | float) and 0 <= value <= 1 else None
