"""The bodies of trace clients' requests and answers about feedback."""

from collections.abc import Mapping
from typing import Any

import attrs

from modelyard.formats.constraints import Length
from modelyard.parts.traces.http.schemas import COUNT, ID, PROJECT, SortBy


@attrs.frozen
class FeedbackCreate:
    """Feedback on the call or the object that `weave_ref` refers to. With an `id` it is stored once."""

    project_id: str = attrs.field(validator=PROJECT)
    weave_ref: str = attrs.field(validator=Length(1, 900))
    feedback_type: str = attrs.field(validator=Length(1, 128))
    payload: Mapping[str, Any] | None = None
    id: str | None = attrs.field(default=None, validator=ID)
    creator: str | None = attrs.field(default=None, validator=Length(0, 1000))
    annotation_ref: str | None = attrs.field(default=None, validator=Length(0, 900))
    runnable_ref: str | None = attrs.field(default=None, validator=Length(0, 900))
    call_ref: str | None = attrs.field(default=None, validator=Length(0, 900))
    trigger_ref: str | None = attrs.field(default=None, validator=Length(0, 900))
    queue_id: str | None = attrs.field(default=None, validator=ID)
    wb_user_id: str | None = attrs.field(default=None, validator=ID)
    scorer_tags: tuple[str, ...] | None = None
    scorer_tag_reasons: Mapping[str, str] | None = None
    scorer_tag_confidences: Mapping[str, float] | None = None
    scorer_ratings: Mapping[str, float] | None = None
    scorer_rating_reasons: Mapping[str, str] | None = None
    scorer_rating_confidences: Mapping[str, float] | None = None


@attrs.frozen
class FeedbackBatch:
    """Feedback on several calls or objects."""

    batch: tuple[FeedbackCreate, ...] = attrs.field(validator=Length(0, 1000))


@attrs.frozen
class FeedbackReplace(FeedbackCreate):
    """Feedback that replaces the feedback with the id `feedback_id`."""

    feedback_id: str = attrs.field(default="", validator=ID)


@attrs.frozen
class FeedbackCreated:
    """The feedback that was stored."""

    id: str
    created_at: str
    wb_user_id: str
    payload: Mapping[str, Any]


@attrs.frozen
class FeedbackBatchAnswer:
    """The feedback that was stored, in its order."""

    res: tuple[FeedbackCreated, ...]


@attrs.frozen
class FeedbackQueryRequest:
    """A selection of feedback, in the order in which it was given unless sorted; `fields` are the fields to show."""

    project_id: str = attrs.field(validator=PROJECT)
    query: Mapping[str, Any] | None = None
    fields: tuple[str, ...] | None = attrs.field(default=None, validator=Length(0, 100))
    sort_by: tuple[SortBy, ...] | None = attrs.field(default=None, validator=Length(0, 10))
    limit: int | None = attrs.field(default=None, validator=COUNT)
    offset: int | None = attrs.field(default=None, validator=COUNT)


@attrs.frozen
class FeedbackAnswer:
    """The feedback that a query finds, and how much there is without its limit and offset."""

    result: tuple[Mapping[str, Any], ...]
    total_count: int


@attrs.frozen
class FeedbackPurgeRequest:
    """The feedback to delete: `query` is a condition on its ids, `{"$expr": {"$eq": [{"$getField": "id"}, ...]}}`."""

    project_id: str = attrs.field(validator=PROJECT)
    query: Mapping[str, Any]
