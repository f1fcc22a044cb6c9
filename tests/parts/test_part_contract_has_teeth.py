"""Parts that are broken on purpose, each of which the contract of parts must catch."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import attrs
import click
import pytest

from modelyard import Platform
from modelyard.domain.identity import Principal
from modelyard.domain.job import Job
from modelyard.domain.record import Index, Record
from modelyard.errors import NotFound
from modelyard.formats.converter import structure
from modelyard.http.error_responses import DETAIL
from modelyard.http.interface import Auth, ErrorFormat, Interface
from modelyard.http.interfaces import OPERATIONS
from modelyard.http.message import Response, json_response
from modelyard.http.route import Body, Route, RouteCall, documented_route
from modelyard.part import Command, DashboardPage, Part
from modelyard.parts.contracts.part_trial import PartTrial
from modelyard.parts.dashboard.part import PART as DASHBOARD
from modelyard.parts.dashboard.view import HtmlPage, View
from modelyard.parts.reports.html import tag
from modelyard.platform.jobs.job_type import JobType
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx
from modelyard.stores.table_changes import AddColumn, AddTable, SchemaChange
from modelyard.testing import PartContract

pytestmark = pytest.mark.slow


@attrs.frozen
class Memo:
    id: str
    entity: str
    text: str
    artifact: str


def record(**changed: Any) -> Record:
    options: dict[str, Any] = {
        "indexes": {"by_entity": Index(("entity",)), "all": Index(())},
        "artifacts": lambda memo: (memo.artifact,),
    }
    return Record(Memo, "memos", ("id",), **options | changed)


MEMO = record()


class Memos:
    """Memos, each with a file, of what a principal may see."""

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self.runtime, self.principal = runtime, principal

    def add(self, text: str) -> Memo:
        file = self.runtime.artifacts.put([text.encode()])
        memo = Memo(self.runtime.ids(), self.principal.entity, text, file.name)
        self.runtime.store.transact(lambda tx: tx.add(memo))
        return memo

    def get(self, id: str) -> Memo:
        return self.runtime.store.read(lambda snapshot: self.found(snapshot, id))

    def found(self, snapshot: Snapshot, id: str) -> Memo:
        memo = snapshot.find(Memo, "key", id)
        if memo is None or not self.principal.scope.covers(memo.entity):
            raise NotFound("Memo", id)
        return memo

    def list(self) -> Sequence[Memo]:
        return self.runtime.store.read(lambda snapshot: snapshot.page(Memo, "by_entity", self.principal.entity))

    def delete(self, id: str) -> None:
        def step(tx: Tx) -> Memo:
            memo = self.found(tx, id)
            tx.remove(Memo, id)
            return memo

        self.runtime.artifacts.remove(self.runtime.store.transact(step).artifact)


@attrs.frozen
class NewMemo:
    """A memo to keep."""

    text: str


def add(call: RouteCall) -> Response:
    """Keep a memo."""
    return json_response(attrs.asdict(call.platform.part(Memos).add(structure(NewMemo, call.body, "body").text)))


def show(call: RouteCall) -> Response:
    """Show a memo."""
    return json_response(attrs.asdict(call.platform.part(Memos).get(call.params["memo"])))


def remove(call: RouteCall) -> Response:
    """Delete a memo."""
    call.platform.part(Memos).delete(call.params["memo"])
    return Response(204, [], b"")


MEMOS = Interface("memos", DETAIL, {("memos",): (Auth.BEARER, DETAIL)})


def routes(interface: Interface = MEMOS, **handlers: Callable[[RouteCall], Response]) -> Sequence[Route]:
    of = {"add": add, "show": show, "remove": remove} | handlers
    return (
        documented_route(interface, Auth.BEARER, "POST", "/memos", of["add"], body=Body.CONTROL, request=NewMemo),
        documented_route(interface, Auth.BEARER, "GET", "/memos/{memo}", of["show"]),
        documented_route(interface, Auth.BEARER, "DELETE", "/memos/{memo}", of["remove"]),
    )


def page(view: View) -> HtmlPage:
    return HtmlPage("Memo", tag("p", view.platform.part(Memos).get(view.params["memo"]).text))


def listed(view: View) -> HtmlPage:
    return HtmlPage("Memos", tag("ul", *[tag("li", memo.text) for memo in view.platform.part(Memos).list()]))


def run(claimed: object) -> Iterator[None]:
    yield


PAGES = (DashboardPage("GET", ("memos",), listed, "Memos"), DashboardPage("GET", ("memos", "{memo}"), page))

GOOD = Part(
    "memos",
    records=lambda: (MEMO,),
    resources={"memos": lambda: Memos},
    job_types={"digest": lambda: JobType("digest", run, "digested", "undigested")},  # type: ignore[arg-type]
    interfaces=lambda: (MEMOS,),
    routes={"memos": routes},
    pages=lambda: PAGES,
    commands={"memos": Command("Work", f"{__name__}:command", "List the memos.")},
)


@click.command()
def command() -> None:
    """List the memos."""


class OnGood(PartContract):
    home = "math"

    def fill(self, platform: Platform) -> None:
        platform.part(Memos).add("a memo of theirs")

    def clear(self, platform: Platform) -> None:
        for memo in platform.part(Memos).list():
            platform.part(Memos).delete(memo.id)


def laws() -> list[str]:
    return [name for name in dir(PartContract) if name.startswith("test_")]


def broken_laws(part: Part, contract: PartContract, folder: Path, tried: Iterable[str] = ()) -> set[str]:
    """The laws that do not hold for a part, of these or of all."""
    broken = set()
    for number, name in enumerate(tried or laws()):
        law = getattr(contract, name)
        (folder / str(number)).mkdir()
        trial = PartTrial(part, [DASHBOARD], folder / str(number))
        try:
            law(**{wanted: {"part": part, "trial": trial}[wanted] for wanted in signature(law).parameters})
        except (Exception, pytest.fail.Exception):
            broken.add(name)
    return broken


def test_a_good_part_breaks_no_law(tmp_path: Path) -> None:
    assert broken_laws(GOOD, OnGood(), tmp_path) == set()


# ---- parts that are broken ------------------------------------------------------------------------------------------


def with_record(**changed: Any) -> Part:
    broken = record(**changed)
    return attrs.evolve(GOOD, records=lambda: (broken,))


def with_routes(**handlers: Callable[[RouteCall], Response]) -> Part:
    return attrs.evolve(GOOD, routes={"memos": lambda: routes(**handlers)})


def with_change(name: str, *steps: Any) -> Part:
    return attrs.evolve(GOOD, changes=lambda: (SchemaChange(name, steps),))


class Nosy(Memos):
    """Shows everyone everything."""

    def list(self) -> Sequence[Memo]:
        return self.runtime.store.read(lambda snapshot: snapshot.page(Memo, "all"))


def show_any(call: RouteCall) -> Response:
    """Show a memo, whosever it is."""
    store = call.platform.part(Memos).runtime.store
    memo = store.read(lambda snapshot: snapshot.find(Memo, "key", call.params["memo"]))
    if memo is None:
        raise NotFound("Memo", call.params["memo"])
    return json_response(attrs.asdict(memo))


def remove_any(call: RouteCall) -> Response:
    """Delete a memo, whosever it is, and say nothing."""
    store, id = call.platform.part(Memos).runtime.store, call.params["memo"]
    store.transact(lambda tx: tx.remove(Memo, id) if tx.find(Memo, "key", id) else None)
    return Response(204, [], b"")


def page_of_any(view: View) -> HtmlPage:
    store = view.platform.part(Memos).runtime.store
    memos = store.read(lambda snapshot: snapshot.page(Memo, "all"))
    return HtmlPage("Memos", tag("ul", *[tag("li", memo.text) for memo in memos]))


def add_unread(call: RouteCall) -> Response:
    """Keep a memo without a look at the body."""
    return json_response(attrs.asdict(call.platform.part(Memos).add(call.body["text"])))


def show_unfound(call: RouteCall) -> Response:
    """Show a memo that must be there."""
    memos = {memo.id: memo for memo in call.platform.part(Memos).list()}
    return json_response(attrs.asdict(memos[call.params["memo"]]))


def failing(view: View) -> HtmlPage:
    raise KeyError("memos")


@attrs.frozen
class Drifting:
    """Counts how often it was read."""

    id: str
    entity: str
    read: int = attrs.field(converter=lambda value: value + 1)


DRIFTING = Record(Drifting, "drifting", ("id",), indexes={"by_entity": Index(("entity",))})


class OnDrifting(OnGood):
    def fill(self, platform: Platform) -> None:
        super().fill(platform)
        runtime = platform._runtime
        runtime.store.transact(lambda tx: tx.add(Drifting(runtime.ids(), platform._principal.entity, 0)))


class Forgetful(OnGood):
    """Names a file that is not there."""

    def fill(self, platform: Platform) -> None:
        memo = platform.part(Memos).add("a memo of theirs")
        platform._runtime.artifacts.remove(memo.artifact)


class Lazy(OnGood):
    def fill(self, platform: Platform) -> None:
        pass


class Untidy(OnGood):
    def clear(self, platform: Platform) -> None:
        store = platform._runtime.store
        for memo in platform.part(Memos).list():
            store.transact(lambda tx, memo=memo: tx.remove(Memo, memo.id))


UNLIKE = ErrorFormat("unlike", lambda error, status: {"whatever": str(error)}, DETAIL.described)
STRANGE = Interface("memos", UNLIKE, {("memos",): (Auth.BEARER, UNLIKE)})

BROKEN: dict[str, tuple[Part, type[PartContract], set[str]]] = {
    "nothing erases its records": (
        with_record(indexes={"all": Index(())}),
        OnGood,
        {"test_every_class_belongs_to_an_entity_or_to_the_host"},
    ),
    "its index by entity is of something else": (
        with_record(indexes={"by_entity": Index(("text",)), "all": Index(())}),
        OnGood,
        {"test_erasing_an_entity_removes_all_of_it_and_nothing_of_another"},
    ),
    "its records do not name their files": (
        with_record(artifacts=None),
        OnGood,
        {"test_no_artifact_of_its_records_is_an_orphan"},
    ),
    "its files are not there": (GOOD, Forgetful, {"test_its_records_and_artifacts_survive_a_backup"}),
    "it stores nothing": (GOOD, Lazy, {"test_fill_stores_a_record_of_every_class"}),
    "what is deleted leaves its file": (GOOD, Untidy, {"test_what_is_deleted_leaves_no_record_and_no_artifact"}),
    "its records are others when they are read again": (
        attrs.evolve(GOOD, records=lambda: (MEMO, DRIFTING)),
        OnDrifting,
        {"test_its_records_survive_a_copy"},
    ),
    "its change has a name of the core": (
        with_change("0099_memos", AddTable(Memo)),
        OnGood,
        {
            "test_its_changes_have_its_name_and_name_its_classes",
            "test_its_records_stay_while_a_platform_is_opened_without_it",
        },
    ),
    "its change alters a table of the core": (
        with_change("memos/0001_jobs", AddColumn(Job, "memo", str)),
        OnGood,
        {
            "test_it_comes_to_a_file_that_was_made_without_it",
            "test_its_changes_have_its_name_and_name_its_classes",
        },
    ),
    "its listing shows everything": (
        attrs.evolve(GOOD, resources={"memos": lambda: Nosy}),
        OnGood,
        {"test_the_listings_of_its_resources_show_another_tenant_nothing"},
    ),
    "a route shows what is not the caller's": (
        with_routes(show=show_any),
        OnGood,
        {"test_its_routes_show_another_tenant_nothing_and_let_it_change_nothing"},
    ),
    "a route deletes what is not the caller's": (
        with_routes(remove=remove_any),
        OnGood,
        {"test_its_routes_show_another_tenant_nothing_and_let_it_change_nothing"},
    ),
    "a page shows what is not the reader's": (
        attrs.evolve(GOOD, pages=lambda: (DashboardPage("GET", ("memos",), page_of_any, "Memos"),)),
        OnGood,
        {"test_its_pages_show_another_tenant_nothing"},
    ),
    "its interface is not mounted": (
        attrs.evolve(GOOD, interfaces=tuple),
        OnGood,
        {"test_its_routes_are_in_the_openapi_document"},
    ),
    "its routes are of another interface": (
        attrs.evolve(GOOD, routes={"memos": lambda: routes(OPERATIONS)}),
        OnGood,
        {"test_each_route_is_listed_under_its_interface"},
    ),
    "its errors are not as described": (
        attrs.evolve(GOOD, interfaces=lambda: (STRANGE,), routes={"memos": lambda: routes(STRANGE)}),
        OnGood,
        {
            "test_no_key_is_refused_in_its_format",
            "test_an_unknown_path_is_refused_in_its_format",
            "test_an_invalid_body_is_refused_in_its_format",
            "test_what_is_not_there_is_refused_in_its_format",
        },
    ),
    "a handler does not look at the body": (
        with_routes(add=add_unread),
        OnGood,
        {"test_an_invalid_body_is_refused_in_its_format"},
    ),
    "a handler fails on what is not there": (
        with_routes(show=show_unfound),
        OnGood,
        {"test_what_is_not_there_is_refused_in_its_format"},
    ),
    "a kind of job has another name": (
        attrs.evolve(GOOD, job_types={"other": GOOD.job_types["digest"]}),
        OnGood,
        {"test_its_kinds_of_jobs_have_their_names"},
    ),
    "an attribute is no name": (
        attrs.evolve(GOOD, resources={"_memos": lambda: Memos}),
        OnGood,
        {"test_its_resources_load"},
    ),
    "the line of help is another": (
        attrs.evolve(GOOD, commands={"memos": Command("Work", f"{__name__}:command", "Show memos.")}),
        OnGood,
        {"test_its_commands_load_and_have_their_line_of_help"},
    ),
    "a page fails on an empty platform": (
        attrs.evolve(GOOD, pages=lambda: (DashboardPage("GET", ("memos",), failing, "Memos"),)),
        OnGood,
        {"test_its_pages_answer_for_an_empty_platform"},
    ),
    "it takes a name of the core": (
        attrs.evolve(GOOD, resources={"chat": lambda: Memos}),
        OnGood,
        {"test_its_names_are_of_nothing_else"},
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_part_breaks_a_law(fault: str, tmp_path: Path) -> None:
    part, contract, expected = BROKEN[fault]
    assert broken_laws(part, contract(), tmp_path, expected) == expected


def test_a_part_that_loads_its_folder_breaks_a_law(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "heavy").mkdir()
    for name, text in {"__init__": "", "service": "", "part": "import heavy.service\nPART = None\n"}.items():
        (tmp_path / "heavy" / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    contract = OnGood()
    contract.home = "heavy.part"
    (tmp_path / "yards").mkdir()
    assert broken_laws(GOOD, contract, tmp_path / "yards") == {LOADS}


LOADS = "test_loading_it_loads_nothing_else_of_its_folder"


def test_each_law_is_broken_by_a_part() -> None:
    assert {LOADS}.union(*(expected for _, _, expected in BROKEN.values())) == set(laws())
