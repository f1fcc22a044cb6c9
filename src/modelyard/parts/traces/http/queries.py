"""Queries of calls as clients send them, read as `CallQuery`."""

from collections.abc import Callable

import attrs

from modelyard.domain.canonical import canonical_json
from modelyard.errors import InvalidInput
from modelyard.formats.converter import unstructure
from modelyard.http.message import problems_at
from modelyard.parts.traces.call_filter import CallFilter
from modelyard.parts.traces.call_query import CallOrder, CallQuery
from modelyard.parts.traces.feedback import Feedbacks
from modelyard.parts.traces.http.documents import Document, DocumentField, call_document, condition_of, with_feedback
from modelyard.parts.traces.http.narrowing import narrowed
from modelyard.parts.traces.http.schemas import CallsFilter, CallsQueryRequest, SortBy
from modelyard.parts.traces.records import TracedCall


def call_query(body: CallsQueryRequest, feedback: Feedbacks) -> CallQuery:
    where, about_feedback = condition_of(body.query)
    shown: Callable[[TracedCall], Document] = call_document
    if about_feedback or any(one.field.startswith("feedback.[") for one in body.sort_by or ()):
        shown = lambda call: with_feedback(call, feedback)  # noqa: E731
    named = canonical_json(unstructure(attrs.evolve(body, limit=None, offset=None, columns=None)))
    with problems_at("body"):
        return CallQuery(
            narrowed(_filter(body.filter or CallsFilter()), where),
            where,
            shown,
            tuple(_order(one, shown) for one in body.sort_by or ()),
            body.limit,
            body.offset or 0,
            named,
        )


def _filter(body: CallsFilter) -> CallFilter:
    return CallFilter(
        body.call_ids or (),
        body.op_names or (),
        body.trace_ids or (),
        body.parent_ids or (),
        body.thread_ids or (),
        body.turn_ids or (),
        body.input_refs or (),
        body.output_refs or (),
        body.trace_roots_only is True,
    )


def _order(sort: SortBy, shown: Callable[[TracedCall], Document]) -> CallOrder:
    if not sort.field.strip("."):
        raise InvalidInput.at("sort_by", msg="must name a field")
    field = DocumentField(sort.field)
    return CallOrder(sort.field, lambda call: field.of(shown(call)), sort.direction == "desc")
