"""The bodies of trace clients' requests and answers about calls. Times are ISO 8601, with a zone or in UTC."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import attrs

from modelyard.errors import InvalidInput
from modelyard.formats.constraints import Length, Matching, Unsupported, Within
from modelyard.parts.traces.records import CallEnd, TracedCall

_NAME = r"(?!\.+(?:/|$))[A-Za-z0-9._-]{1,128}"
PROJECT = Matching(rf"{_NAME}/{_NAME}", "must be <entity>/<project>")
ID = Length(1, 128)
COUNT = Within(0, 2**53)
MAX_BATCH = 10_000


@attrs.frozen
class CallStart:
    """A call that begins. Without `trace_id` it begins a trace."""

    project_id: str = attrs.field(validator=PROJECT)
    op_name: str = attrs.field(validator=Length(0, 1000))
    started_at: str = attrs.field(validator=Length(1, 64))
    attributes: Mapping[str, Any] | None = None
    inputs: Mapping[str, Any] | None = None
    id: str | None = attrs.field(default=None, validator=ID)
    trace_id: str | None = attrs.field(default=None, validator=ID)
    parent_id: str | None = attrs.field(default=None, validator=ID)
    thread_id: str | None = attrs.field(default=None, validator=ID)
    turn_id: str | None = attrs.field(default=None, validator=ID)
    display_name: str | None = attrs.field(default=None, validator=Length(0, 1000))
    wb_user_id: str | None = attrs.field(default=None, validator=ID)
    wb_run_id: str | None = attrs.field(default=None, validator=ID)
    wb_run_step: int | None = None


@attrs.frozen
class CallOutcome:
    """The outcome of a call: its output, or the exception that it raised."""

    project_id: str = attrs.field(validator=PROJECT)
    id: str = attrs.field(validator=ID)
    ended_at: str = attrs.field(validator=Length(1, 64))
    summary: Mapping[str, Any] | None = None
    output: Any = None
    exception: str | None = None
    trace_id: str | None = attrs.field(default=None, validator=ID)
    started_at: str | None = attrs.field(default=None, validator=Length(1, 64))


@attrs.frozen
class CompleteCall(CallStart):
    """A whole call, from its start to its outcome."""

    ended_at: str | None = attrs.field(default=None, validator=Length(1, 64))
    summary: Mapping[str, Any] | None = None
    output: Any = None
    exception: str | None = None


@attrs.frozen
class CallStartRequest:
    """The start of a call, to be recorded."""

    start: CallStart


@attrs.frozen
class CallEndRequest:
    """The end of a call, to be recorded."""

    end: CallOutcome


@attrs.frozen
class CompleteCallsRequest:
    """Whole calls, all of the project in the path."""

    batch: tuple[CompleteCall, ...] = attrs.field(validator=Length(0, MAX_BATCH))


@attrs.frozen
class CallBatchItem:
    """A start or an end: `req` is what its own route takes, under the member that `mode` names."""

    mode: Literal["start", "end"]
    req: Mapping[str, Any]


@attrs.frozen
class CallBatchRequest:
    """Starts and ends of calls, in their order."""

    batch: tuple[CallBatchItem, ...] = attrs.field(validator=Length(0, MAX_BATCH))


@attrs.frozen
class CallUpdateRequest:
    """Another display name of a call; "" for none."""

    project_id: str = attrs.field(validator=PROJECT)
    call_id: str = attrs.field(validator=ID)
    display_name: str | None = attrs.field(default=None, validator=Length(0, 1000))


@attrs.frozen
class CallReadRequest:
    """The call that is to be read."""

    project_id: str = attrs.field(validator=PROJECT)
    id: str = attrs.field(validator=ID)


@attrs.frozen
class CallDeleteRequest:
    """The calls to delete, with those that they made."""

    project_id: str = attrs.field(validator=PROJECT)
    call_ids: tuple[str, ...] = attrs.field(validator=Length(0, 1000))


@attrs.frozen
class SortBy:
    """A field to sort by, with members after dots."""

    field: str = attrs.field(validator=Length(1, 1000))
    direction: Literal["asc", "desc"]


@attrs.frozen
class CallsFilter:
    """A filter of calls, which agree with every member. An op is named by its reference, `...:*` for all versions."""

    op_names: tuple[str, ...] | None = None
    input_refs: tuple[str, ...] | None = None
    output_refs: tuple[str, ...] | None = None
    parent_ids: tuple[str, ...] | None = None
    trace_ids: tuple[str, ...] | None = None
    call_ids: tuple[str, ...] | None = None
    thread_ids: tuple[str, ...] | None = None
    turn_ids: tuple[str, ...] | None = None
    trace_roots_only: bool | None = None
    wb_user_ids: object = attrs.field(default=None, validator=Unsupported("calls are not found by their users here"))
    wb_run_ids: object = attrs.field(default=None, validator=Unsupported("calls are not found by runs here"))


@attrs.frozen
class CallsQueryRequest:
    """A selection of calls, their order, and the part to return; `query` is a condition, `{"$expr": ...}`."""

    project_id: str = attrs.field(validator=PROJECT)
    filter: CallsFilter | None = None
    query: Mapping[str, Any] | None = None
    sort_by: tuple[SortBy, ...] | None = attrs.field(default=None, validator=Length(0, 10))
    limit: int | None = attrs.field(default=None, validator=COUNT)
    offset: int | None = attrs.field(default=None, validator=COUNT)
    columns: tuple[str, ...] | None = attrs.field(default=None, validator=Length(0, 100))
    include_feedback: bool | None = None
    include_costs: bool | None = None


@attrs.frozen
class CallIds:
    """The ids of a call and of its trace."""

    id: str
    trace_id: str


@attrs.frozen
class CallBatchAnswer:
    """The outcome of a batch: the ids of each call that begins, and nothing for a call that ends."""

    res: tuple[Mapping[str, str], ...]


@attrs.frozen
class Empty:
    """An answer without any members."""


@attrs.frozen
class CallObject:
    """A call, with the members that were requested.

    `summary.weave` says whether it runs or how it ended, and how long it took.
    """

    id: str
    project_id: str
    op_name: str
    trace_id: str
    started_at: str
    attributes: Mapping[str, Any]
    inputs: Mapping[str, Any]
    display_name: str | None = None
    parent_id: str | None = None
    thread_id: str | None = None
    turn_id: str | None = None
    ended_at: str | None = None
    exception: str | None = None
    output: Any = None
    summary: Mapping[str, Any] | None = None
    deleted_at: str | None = None
    wb_user_id: str | None = None
    wb_run_id: str | None = None
    wb_run_step: int | None = None


@attrs.frozen
class CallAnswer:
    """A call; null if there is none."""

    call: CallObject | None


@attrs.frozen
class CallsDeleted:
    """How many calls were deleted."""

    num_deleted: int


@attrs.frozen
class CallsCount:
    """How many calls a query finds, at most its limit; `has_more` tells that the limit was reached."""

    count: int
    has_more: bool


# ---- from the wire -------------------------------------------------------------------------------------------------


def moment(text: str, *loc: str | int) -> datetime:
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidInput.at(*loc, msg="must be a time in ISO 8601", type="datetime_parsing") from None


def started(body: CallStart, new_id: str, *loc: str | int) -> TracedCall:
    call_id = body.id or new_id
    more = {name: getattr(body, name) for name in ("wb_user_id", "wb_run_id", "wb_run_step")}
    entity, _, project = body.project_id.partition("/")
    return TracedCall(
        entity,
        project,
        call_id,
        body.trace_id or call_id,
        body.op_name,
        moment(body.started_at, *loc, "started_at"),
        body.parent_id,
        display_name=body.display_name or None,
        inputs=body.inputs or {},
        attributes=body.attributes or {},
        thread_id=body.thread_id,
        turn_id=body.turn_id,
        more={name: value for name, value in more.items() if value is not None},
    )


def ended(body: CallOutcome | CompleteCall, call_id: str, *loc: str | int) -> CallEnd:
    if body.ended_at is None:
        raise InvalidInput.at(*loc, "ended_at", msg="is required", type="missing")
    start = None if body.started_at is None else moment(body.started_at, *loc, "started_at")
    return CallEnd(
        call_id,
        moment(body.ended_at, *loc, "ended_at"),
        body.output,
        body.exception,
        body.summary or {},
        body.trace_id,
        start,
    )
