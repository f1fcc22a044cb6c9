"""Tags and notes over HTTP, for every key: of what it may see."""

from datetime import datetime
from functools import partial

import attrs

from modelyard.errors import InvalidInput
from modelyard.formats.constraints import Length
from modelyard.formats.converter import structure_exactly
from modelyard.http.interface import Auth
from modelyard.http.interfaces import OPERATIONS
from modelyard.http.listing import NAMESPACE, PAGING, page_class, requested_page
from modelyard.http.message import Response, answering, json_response, problems_at
from modelyard.http.route import Body, Parameter, Route, RouteCall, documented_route
from modelyard.parts.annotations.records import MAX_NOTE, MAX_TAGS, AnnotatedKind

ANNOTATIONS = "/v1/annotations"
ANNOTATION = f"{ANNOTATIONS}/{{subject...}}"

_KIND = Parameter("kind", {"type": "string", "enum": [*AnnotatedKind], "default": "run"}, "Of which kind.")
_TAG = Parameter("tag", description="Only what has this tag.")
_TEXT = Parameter("text", description="Only what has this text in a tag or in the note.")
_FILTERS = (_KIND, _TAG, _TEXT, *NAMESPACE, *PAGING)


@attrs.frozen
class AnnotationChange:
    """The body that replaces the tags, the note, or both; what is absent stays as it is."""

    tags: tuple[str, ...] | None = attrs.field(default=None, validator=Length(0, MAX_TAGS))
    note: str | None = attrs.field(default=None, validator=Length(0, MAX_NOTE))


@attrs.frozen
class AnnotationObject:
    """The tags and the note of a job, an evaluation run, a model or a checkpoint; `id` is its id."""

    id: str
    kind: AnnotatedKind
    entity: str
    project: str
    tags: tuple[str, ...]
    note: str
    updated_at: datetime | None


annotation_object = answering(AnnotationObject)
AnnotationPage = page_class("AnnotationPage", AnnotationObject, annotation_object, "A page of annotations.")


def list_annotations(call: RouteCall) -> Response:
    """List the annotated jobs, runs, models or checkpoints."""
    kind = call.one("kind") or AnnotatedKind.RUN
    if kind not in [*AnnotatedKind]:
        raise InvalidInput.at("query", "kind", msg=f"must be one of {', '.join(AnnotatedKind)}")
    with problems_at("query"):
        page = requested_page(
            call,
            lambda order: call.platform.annotations.list(
                kind=kind,
                tag=call.one("tag"),
                text=call.one("text"),
                project=call.one("project"),
                entity=call.one("entity"),
                order=order,
            ),
        )
    return json_response(AnnotationPage.of(page))


def show_annotation(call: RouteCall) -> Response:
    """Show the tags and the note of a job, a run, a model or a checkpoint, by its id or its name."""
    return json_response(annotation_object(call.platform.annotations.get(call.params["subject"])))


def set_annotation(call: RouteCall) -> Response:
    """Replace the tags, the note, or both. Idempotent."""
    body = structure_exactly(AnnotationChange, call.body, "body")
    with problems_at("body"):
        changed = call.platform.annotations.set(call.params["subject"], tags=body.tags, note=body.note)
    return json_response(annotation_object(changed))


_route = partial(documented_route, OPERATIONS, Auth.BEARER)

ROUTES: tuple[Route, ...] = (
    _route("GET", ANNOTATIONS, list_annotations, query=_FILTERS, response=AnnotationPage),
    _route("GET", ANNOTATION, show_annotation, response=AnnotationObject, links={"subject": "id"}),
    _route("PUT", ANNOTATION, set_annotation, body=Body.CONTROL, request=AnnotationChange, response=AnnotationObject),
)
