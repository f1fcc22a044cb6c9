"""The routes of datasets, scorers, models, evaluations and ops (specification 4.5)."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from modelyard.domain.evaluation.objects import EVALUATION_KINDS, MODEL_KINDS, ObjectKind, ObjectVersion, RefKind
from modelyard.formats.json_stream import file_chunks
from modelyard.http.evaluations.object_schemas import (
    DatasetCreate,
    DatasetVersionObject,
    EvaluationCreate,
    EvaluationCreated,
    EvaluationObject,
    ModelVersionCreate,
    ModelVersionCreated,
    ModelVersionObject,
    OpCreate,
    OpObject,
    ScorerCreate,
    ScorerCreated,
    ScorerObject,
    VersionCreated,
    content_of,
    created_object,
    dataset_request,
    dataset_rows,
    version_object,
)
from modelyard.http.evaluations.route import (
    TEXTS,
    WINDOW,
    ListingQuery,
    NumDeleted,
    body_with_references,
    creation_route,
    evaluation_route,
    namespace_of,
    problems_in_request,
)
from modelyard.http.message import Response, json_response
from modelyard.http.query import Query
from modelyard.http.route import Body, Parameter, PlainHandler, Route, RouteCall

Creator = Callable[[RouteCall], ObjectVersion]


def create_dataset(call: RouteCall) -> ObjectVersion:
    """Store the next version of a dataset; equal content is the version that has it."""
    namespace = namespace_of(call)
    body = dataset_request(file_chunks(call.file))
    call.file.seek(0)
    content = {"description": body.description}
    return _publish(call, ObjectKind.DATASET, body.name, content, dataset_rows(file_chunks(call.file)), **namespace)


def _creator(kind: ObjectKind, cls: type[Any], references: Mapping[str, frozenset[RefKind]]) -> Creator:
    def create(call: RouteCall) -> ObjectVersion:
        namespace = namespace_of(call)
        body = body_with_references(cls, call, **references)
        return _publish(call, kind, body.name, content_of(body), None, **namespace)

    return create


def _publish(
    call: RouteCall,
    kind: ObjectKind,
    name: str,
    content: Mapping[str, Any],
    rows: Iterator[Any] | None,
    **namespace: Any,
) -> ObjectVersion:
    with problems_in_request():
        return call.platform.evaluations.objects.publish(kind, name, content, rows, **namespace)


def _lister(kind: ObjectKind) -> PlainHandler:
    def list_versions(call: RouteCall) -> Response:
        namespace, query = namespace_of(call), ListingQuery(call.query)
        query.check()
        return query.response(call.platform.evaluations.objects.list(kind, **namespace), version_object)

    return list_versions


def _reader(kind: ObjectKind) -> PlainHandler:
    def read(call: RouteCall) -> Response:
        return json_response(version_object(_version(call, kind)))

    return read


def _version(call: RouteCall, kind: ObjectKind) -> ObjectVersion:
    object_id, version = call.params["object_id"], call.params["version"]
    return call.platform.evaluations.objects.get(kind, object_id, version, **namespace_of(call))


def _deleter(kind: ObjectKind) -> PlainHandler:
    def delete(call: RouteCall) -> Response:
        namespace, query = namespace_of(call), Query(call.query)
        digests = query.texts("digests")
        query.check()
        deleted = call.platform.evaluations.objects.delete(kind, call.params["object_id"], digests, **namespace)
        return json_response(NumDeleted(deleted))

    return delete


_EAGER = Parameter("eager", {"type": "boolean"}, "Accepted without effect: the code is always shown.")
_DIGESTS = Parameter("digests", TEXTS, "Which versions to delete; all when absent.")


def _routes(kind: ObjectKind, create: Creator, request: type, created: type, shown: type, body: Body) -> list[Route]:
    word = kind.value
    one, version = f"/{word}s/{{object_id}}", f"/{word}s/{{object_id}}/versions/{{version}}"
    article = "an" if word[0] in "aeiou" else "a"
    return [
        creation_route(
            f"/{word}s",
            create,
            created_object,
            body=body,
            request=request,
            response=created,
            links={"object_id": "object_id", "version": "digest"},
            summary=f"Store the next version of {article} {word}; equal content is the version that has it.",
            operation=f"create_{word}_version",
        ),
        evaluation_route(
            "GET",
            f"/{word}s",
            _lister(kind),
            query=WINDOW,
            response=shown,
            media="application/jsonl",
            summary=f"List the versions of all {word}s, one JSON object a line.",
            operation=f"list_{word}_versions",
        ),
        evaluation_route(
            "GET",
            version,
            _reader(kind),
            query=(_EAGER,) if kind is ObjectKind.OP else (),
            response=shown,
            summary=f"Show a version of {article} {word}, by digest, `v<n>`, `latest` or alias.",
            operation=f"show_{word}_version",
        ),
        evaluation_route(
            "DELETE",
            one,
            _deleter(kind),
            query=(_DIGESTS,),
            response=NumDeleted,
            summary=f"Delete versions of {article} {word}; those that do not exist are not counted.",
            operation=f"delete_{word}_versions",
        ),
    ]


_REFERENCES = {"dataset": EVALUATION_KINDS, "scorers": MODEL_KINDS}

ROUTES: tuple[Route, ...] = (
    *_routes(ObjectKind.DATASET, create_dataset, DatasetCreate, VersionCreated, DatasetVersionObject, Body.DATA),
    *(
        route
        for kind, request, created, shown, references in (
            (ObjectKind.SCORER, ScorerCreate, ScorerCreated, ScorerObject, {}),
            (ObjectKind.MODEL, ModelVersionCreate, ModelVersionCreated, ModelVersionObject, {}),
            (ObjectKind.EVALUATION, EvaluationCreate, EvaluationCreated, EvaluationObject, _REFERENCES),
            (ObjectKind.OP, OpCreate, VersionCreated, OpObject, {}),
        )
        for route in _routes(kind, _creator(kind, request, references), request, created, shown, Body.CHAT)
    ),
)
