"""The filter of a query of calls: an index finds a part of it, and the rest is checked on each call."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import attrs

from modelyard.errors import InvalidInput
from modelyard.parts.traces.records import TracedCall, op_of

MAX_NAMED = 1000
MOST = "success"
"""The outcome of most calls. Calls with another one are found fastest by their outcome."""

Range = tuple[str, tuple[str | None, ...]]
"""An index of calls, and the values to look up in it after the project."""


@attrs.frozen
class CallFilter:
    """A filter of calls: a call must agree with every member that is not empty.

    An op is named by its name, by the reference of a version, or by a reference that ends in `:*` for all versions.
    `refs` of inputs and outputs are references that stand anywhere in them. `outcomes` are "running", "success" and
    "error". Calls began at `since` or later and before `until`. `with_feedback` keeps the calls that have feedback.
    """

    call_ids: tuple[str, ...] = ()
    op_names: tuple[str, ...] = ()
    trace_ids: tuple[str, ...] = ()
    parent_ids: tuple[str, ...] = ()
    thread_ids: tuple[str, ...] = ()
    turn_ids: tuple[str, ...] = ()
    input_refs: tuple[str, ...] = ()
    output_refs: tuple[str, ...] = ()
    roots_only: bool = False
    outcomes: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    with_feedback: bool = False

    def __attrs_post_init__(self) -> None:
        for field in attrs.fields(CallFilter):
            value = getattr(self, field.name)
            if isinstance(value, tuple) and len(value) > MAX_NAMED:
                raise InvalidInput.at("filter", field.name, msg=f"must be at most {MAX_NAMED}", type="too_long")

    def keeps(self, call: TracedCall) -> bool:
        return (
            _among(call.id, self.call_ids)
            and (not self.op_names or any(_is_op(call, name) for name in self.op_names))
            and _among(call.trace_id, self.trace_ids)
            and _among(call.parent_id, self.parent_ids)
            and _among(call.thread_id, self.thread_ids)
            and _among(call.turn_id, self.turn_ids)
            and (not self.input_refs or _holds(call.inputs, self.input_refs))
            and (not self.output_refs or _holds(call.output, self.output_refs))
            and not (self.roots_only and call.parent_id is not None)
            and _among(call.outcome, self.outcomes)
            and (self.since is None or call.started_at >= self.since)
            and (self.until is None or call.started_at < self.until)
        )

    def ranges(self) -> list[Range]:
        outcomes: list[Range] = [("by_outcome", (one,)) for one in dict.fromkeys(self.outcomes)]
        if self.parent_ids:
            return [("by_parent", (one,)) for one in dict.fromkeys(self.parent_ids)]
        if self.trace_ids:
            return [("by_trace", (one,)) for one in dict.fromkeys(self.trace_ids)]
        if outcomes and MOST not in self.outcomes:
            return outcomes
        if self.op_names:
            return [("by_op", (op,)) for op in dict.fromkeys(map(op_of, self.op_names))]
        return [("by_parent", (None,))] if self.roots_only else outcomes or [("by_start", ())]

    @property
    def is_exact(self) -> bool:
        """Whether all calls in `ranges` agree, so that nothing has to be checked on them."""
        rest = attrs.evolve(self, **_COVERED[self.ranges()[0][0]])
        whole = all("://" not in name or name.endswith(":*") for name in self.op_names)
        return whole and rest == EVERY and not (self.parent_ids and self.roots_only)


EVERY = CallFilter()

_COVERED: Mapping[str, Mapping[str, Any]] = {
    "by_parent": {"parent_ids": (), "roots_only": False},
    "by_trace": {"trace_ids": ()},
    "by_op": {"op_names": ()},
    "by_outcome": {"outcomes": ()},
    "by_start": {},
}
"""What of a filter an index covers, emptied."""


def _among(value: str | None, values: Sequence[str]) -> bool:
    return not values or value in values


def _is_op(call: TracedCall, name: str) -> bool:
    return name == call.op_name or (call.op == op_of(name) and (name.endswith(":*") or "://" not in name))


def _holds(value: Any, refs: Sequence[str]) -> bool:
    if isinstance(value, str):
        return any(value == ref or (ref.endswith(":*") and value.startswith(ref[:-1])) for ref in refs)
    if isinstance(value, Mapping):
        return any(_holds(part, refs) for part in value.values())
    return isinstance(value, Sequence) and any(_holds(part, refs) for part in value)
