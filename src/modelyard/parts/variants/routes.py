"""Variants over HTTP: their versions are published, shown, compared and deleted, and their aliases move."""

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any

import attrs

from modelyard.domain.promotion import Change
from modelyard.errors import InvalidInput
from modelyard.formats.constraints import Length, Within
from modelyard.formats.converter import structure_exactly
from modelyard.http.idempotency import IDEMPOTENCY_KEY, creating
from modelyard.http.interface import Auth
from modelyard.http.interfaces import OPERATIONS
from modelyard.http.listing import NAMESPACE, PAGING, page_class, requested_page
from modelyard.http.message import Response, answering, json_response, problems_at
from modelyard.http.models.schemas import Requirement
from modelyard.http.route import Body, Parameter, Route, RouteCall, documented_route
from modelyard.parts.variants.content import MAX_EXAMPLES, MAX_MODEL, MAX_SIZE, VariantContent
from modelyard.parts.variants.file import MAX_FILE
from modelyard.parts.variants.records import VariantMove, VariantVersion
from modelyard.parts.variants.service import MAX_NOTE, Variants

VARIANTS = "/v1/variants"
VARIANT = f"{VARIANTS}/{{project}}/{{name}}"
VERSIONS = f"{VARIANT}/versions"
VERSION = f"{VERSIONS}/{{version}}"
ALIASES = f"{VARIANT}/aliases"
ALIAS = f"{ALIASES}/{{alias}}"

_ENTITY = Parameter("entity", description="The entity of the variant; the key's default one when absent.")
_DIFF = (
    Parameter("before", description="The number or the alias of a version.", required=True),
    Parameter("after", description="Those of another one; the newest when absent."),
    _ENTITY,
)


@attrs.frozen
class NewVariantExample:
    """A question and its answer: the text of the user, or instead the inputs of the template."""

    assistant: str = attrs.field(validator=Length(1, MAX_SIZE))
    user: str | None = attrs.field(default=None, validator=Length(1, MAX_SIZE))
    inputs: Mapping[str, str] | None = None


@attrs.frozen
class NewVariantVersion:
    """The body that publishes the next version. `parent` is the number of the one it was made from, by default the
    newest."""

    model: str = attrs.field(validator=Length(1, MAX_MODEL))
    system: str = attrs.field(default="", validator=Length(0, MAX_SIZE))
    template: str = attrs.field(default="", validator=Length(0, MAX_SIZE))
    examples: tuple[NewVariantExample, ...] = attrs.field(default=(), validator=Length(0, MAX_EXAMPLES))
    parameters: Mapping[str, Any] = attrs.field(factory=dict)
    note: str = attrs.field(default="", validator=Length(0, MAX_NOTE))
    parent: int | None = attrs.field(default=None, validator=Within(1))


@attrs.frozen
class NewVariantFile:
    """The body that publishes what a file says. `name` replaces the name in it, "project/name"."""

    file: str = attrs.field(validator=Length(1, MAX_FILE))
    name: str | None = attrs.field(default=None, validator=Length(1, 512))
    note: str = attrs.field(default="", validator=Length(0, MAX_NOTE))


@attrs.frozen
class VariantPromotion:
    """The body that points an alias at a version, if that meets the requirement."""

    number: int = attrs.field(validator=Within(1))
    require: Requirement | None = None


@attrs.frozen
class VariantObject:
    """A variant. `last_number` is the number of its newest version."""

    id: str
    entity: str
    project: str
    name: str
    last_number: int
    created_at: datetime


@attrs.frozen
class VariantVersionObject:
    """A version of a variant, which never changes."""

    id: str
    variant_id: str
    entity: str
    project: str
    number: int
    digest: str
    model: str
    system: str
    template: str
    examples: tuple[Mapping[str, Any], ...]
    parameters: Mapping[str, Any]
    parent: int | None
    note: str
    by: str
    created_at: datetime


@attrs.frozen
class VariantFileObject:
    """A version as a file, in TOML."""

    number: int
    file: str


@attrs.frozen
class VariantAliasObject:
    """An alias. A rollback leads to the version `previous`, null for nowhere."""

    name: str
    number: int
    previous: int | None
    updated_at: datetime


@attrs.frozen
class VariantAliasList:
    """The aliases of a variant by name."""

    data: tuple[VariantAliasObject, ...]


@attrs.frozen
class VariantMoveObject:
    """A change of an alias. `number` is null where it was removed, `before` where there was none."""

    id: str
    variant_id: str
    alias: str
    change: Change
    number: int | None
    before: int | None
    by: str
    verdict: Mapping[str, Any] | None
    created_at: datetime


@attrs.frozen
class VariantDiffObject:
    """How two versions differ: the members that do, and their files as a unified diff."""

    before: int
    after: int
    changed: tuple[str, ...]
    diff: str


@attrs.frozen
class VariantLineageObject:
    """Where a version comes from, and what was made of it. `parents` are numbers of versions, the nearest first, and
    `runs` the ids of evaluation runs, the newest first. `checkpoint` is the id of that of a trained model."""

    number: int
    digest: str
    model: str
    checkpoint: str | None
    parents: tuple[int, ...]
    aliases: tuple[str, ...]
    runs: tuple[str, ...]


variant_object = answering(VariantObject)
alias_object = answering(VariantAliasObject)
move_object = answering(VariantMoveObject, verdict=lambda move: move.verdict or None)


def version_object(version: VariantVersion) -> VariantVersionObject:
    content: VariantContent = version.content
    return VariantVersionObject(
        version.id,
        version.variant_id,
        version.entity,
        version.project,
        version.number,
        version.digest,
        content.model,
        content.system,
        content.template,
        tuple(content.data["examples"]),
        content.parameters,
        version.parent,
        version.note,
        version.by,
        version.created_at,
    )


VariantPage = page_class("VariantPage", VariantObject, variant_object, "A page of variants.")
VariantVersionPage = page_class("VariantVersionPage", VariantVersionObject, version_object, "A page of versions.")
VariantMovePage = page_class("VariantMovePage", VariantMoveObject, move_object, "A page of changes of an alias.")


def _of(call: RouteCall) -> Variants:
    return call.platform.part(Variants)


def _name(call: RouteCall, version: str = "") -> str:
    entity = call.one("entity")
    name = f"{call.params['project']}/{call.params['name']}" + (f"@{version}" if version else "")
    return name if entity is None else f"{entity}/{name}"


def _version_name(call: RouteCall) -> str:
    return _name(call, call.params["version"])


def publish_variant(call: RouteCall) -> Response:
    """Publish the next version of a variant, and the variant with the first. The same again makes none."""
    body = structure_exactly(NewVariantVersion, call.body, "body")
    examples = [{name: value for name, value in attrs.asdict(one).items() if value} for one in body.examples]
    with problems_at("body"):
        made = _of(call).publish(
            _name(call),
            model=body.model,
            system=body.system,
            template=body.template,
            examples=examples,
            parameters=body.parameters,
            note=body.note,
            parent=body.parent,
        )
    return json_response(version_object(made))


def publish_variant_file(call: RouteCall) -> Response:
    """Publish what a file says as the next version of a variant. The same again makes none."""
    body = structure_exactly(NewVariantFile, call.body, "body")
    with problems_at("body"):
        made = _of(call).read_file(body.file, name=body.name, note=body.note)
    return json_response(version_object(made))


def list_variants(call: RouteCall) -> Response:
    """List variants."""
    with problems_at("query"):
        page = requested_page(
            call, lambda order: _of(call).list(project=call.one("project"), entity=call.one("entity"), order=order)
        )
    return json_response(VariantPage.of(page))


def show_variant(call: RouteCall) -> Response:
    """Show a variant."""
    return json_response(variant_object(_of(call).get(_name(call))))


def delete_variant(call: RouteCall) -> Response:
    """Delete a variant with its versions, if no alias points to one."""
    return json_response(variant_object(_of(call).delete(_name(call))))


def list_variant_versions(call: RouteCall) -> Response:
    """List the versions of a variant by number."""
    with problems_at("query"):
        page = requested_page(call, lambda order: _of(call).versions(_name(call), order=order))
    return json_response(VariantVersionPage.of(page))


def show_variant_version(call: RouteCall) -> Response:
    """Show a version by its number, an alias, or "latest"."""
    return json_response(version_object(_of(call).version(_version_name(call))))


def show_variant_file(call: RouteCall) -> Response:
    """Show a version as a file."""
    name = _version_name(call)
    return json_response(VariantFileObject(_of(call).version(name).number, _of(call).file(name)))


def show_variant_lineage(call: RouteCall) -> Response:
    """Show where a version comes from, its aliases and its runs."""
    found = _of(call).lineage(_version_name(call))
    return json_response(
        VariantLineageObject(
            found.version.number,
            found.version.digest,
            found.version.content.model,
            None if found.checkpoint is None else found.checkpoint.checkpoint.id,
            tuple(one.number for one in found.parents),
            found.aliases,
            tuple(run.id for run in found.runs),
        )
    )


def diff_variant(call: RouteCall) -> Response:
    """Show how two versions differ."""
    before, after = call.one("before"), call.one("after")
    if before is None:
        raise InvalidInput.at("query", "before", msg="is required", type="missing")
    found = _of(call).diff(_name(call, before), _name(call, after or "latest"))
    return json_response(VariantDiffObject(found.before.number, found.after.number, found.changed, found.text))


def list_variant_aliases(call: RouteCall) -> Response:
    """List the aliases of a variant by name."""
    return json_response(VariantAliasList(tuple(map(alias_object, _of(call).aliases(_name(call))))))


def promote_variant(call: RouteCall) -> Response:
    """Point an alias at a version, if that meets the requirement. Idempotent."""
    body = structure_exactly(VariantPromotion, call.body, "body")
    with problems_at("body"):
        require = None if body.require is None else body.require.not_worse()
        made = _of(call).promote(_name(call), body.number, call.params["alias"], require=require)
    return json_response(move_object(made))


def roll_back_variant(call: RouteCall) -> VariantMove:
    """Point an alias back to its target before the last promotion."""
    return _of(call).rollback(_name(call), call.params["alias"])


def remove_variant_alias(call: RouteCall) -> Response:
    """Remove an alias; its history stays."""
    return json_response(move_object(_of(call).remove_alias(_name(call), call.params["alias"])))


def list_variant_moves(call: RouteCall) -> Response:
    """List every change of an alias in order."""
    with problems_at("query"):
        page = requested_page(call, lambda order: _of(call).moves(_name(call), call.params["alias"], order=order))
    return json_response(VariantMovePage.of(page))


_route = partial(documented_route, OPERATIONS, Auth.BEARER)
_one = partial(_route, query=(_ENTITY,))
_listing = partial(_route, "GET", query=(_ENTITY, *PAGING))

ROUTES: tuple[Route, ...] = (
    _route("GET", VARIANTS, list_variants, query=(*NAMESPACE, *PAGING), response=VariantPage),
    _route(
        "POST",
        VARIANTS,
        publish_variant_file,
        body=Body.CONTROL,
        request=NewVariantFile,
        response=VariantVersionObject,
    ),
    _one("GET", VARIANT, show_variant, response=VariantObject),
    _one("DELETE", VARIANT, delete_variant, response=VariantObject),
    _listing(VERSIONS, list_variant_versions, response=VariantVersionPage),
    _one(
        "POST",
        VERSIONS,
        publish_variant,
        body=Body.CONTROL,
        request=NewVariantVersion,
        response=VariantVersionObject,
    ),
    _one("GET", VERSION, show_variant_version, response=VariantVersionObject),
    _one("GET", f"{VERSION}/file", show_variant_file, response=VariantFileObject),
    _one("GET", f"{VERSION}/lineage", show_variant_lineage, response=VariantLineageObject),
    _route("GET", f"{VARIANT}/diff", diff_variant, query=_DIFF, response=VariantDiffObject),
    _one("GET", ALIASES, list_variant_aliases, response=VariantAliasList),
    _one("PUT", ALIAS, promote_variant, body=Body.CONTROL, request=VariantPromotion, response=VariantMoveObject),
    _one("DELETE", ALIAS, remove_variant_alias, response=VariantMoveObject),
    _one(
        "POST",
        f"{ALIAS}/rollback",
        creating(roll_back_variant, move_object),
        response=VariantMoveObject,
        headers=(IDEMPOTENCY_KEY,),
    ),
    _listing(f"{ALIAS}/moves", list_variant_moves, response=VariantMovePage),
)
