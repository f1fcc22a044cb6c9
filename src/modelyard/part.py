"""What one optional capability adds to a platform, as one value (docs/how-to/write-a-part.md)."""

import os
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol

import attrs

from modelyard.domain.record import EMPTY
from modelyard.errors import InvalidInput

if TYPE_CHECKING:
    from modelyard.domain.completion import CompletionRequest
    from modelyard.domain.evaluation.objects import ObjectRef
    from modelyard.domain.evaluation.run import EvaluationRun
    from modelyard.domain.identity import Principal
    from modelyard.domain.job import Job
    from modelyard.domain.models import Model
    from modelyard.domain.record import Record
    from modelyard.domain.training import Trajectory
    from modelyard.formats.training_data import RowFormat
    from modelyard.http.interface import Interface
    from modelyard.http.message import Request, Response
    from modelyard.http.route import Route
    from modelyard.platform.jobs.job_type import JobType
    from modelyard.platform.platform import Platform
    from modelyard.platform.runtime import Runtime
    from modelyard.protocols import ArtifactStore, Backend, Executor, Randomness, Snapshot, Store, Trainer, Tx
    from modelyard.stores.table_changes import SchemaChange

    Resource = Callable[[Runtime, Principal], Any]
    Routes = Callable[[], Sequence[Route]]
    OpenStore = Callable[[str, Sequence[Record], Sequence[SchemaChange], Literal["power", "process"]], Store]
    OpenArtifacts = Callable[[str, Randomness], ArtifactStore]


ALWAYS = ""
"""The name of routes that are mounted with any interface."""


@attrs.frozen
class Command:
    """A command of the command line: the section of its help, "module:function", and its line there.

    Under a name of two words, such as "train import", it belongs to the group of the first, and has no section.
    """

    section: str
    home: str
    help: str


@attrs.frozen
class StoreAddress:
    """How to open the store at an address, and to `migrate` its tables; `example` is an address.

    `exists` returns whether there is a store already, and makes none.
    """

    example: str
    open: "OpenStore"
    migrate: "Callable[[str, Sequence[Record], Sequence[SchemaChange]], Sequence[str]]"
    exists: Callable[[str], bool] = lambda address: True


@attrs.frozen
class DashboardPage:
    """A page or an action of the dashboard: a method, a path with names in braces, and what answers it.

    `answer` takes a `modelyard.parts.dashboard.view.View` and returns a page or where to go. A page with a `label` is
    in the navigation of each such view for which it `is_shown`.
    """

    method: str
    path: tuple[str, ...]
    answer: Callable[[Any], Any]
    label: str = ""
    is_shown: Callable[[Any], bool] = lambda view: True


class DefaultEngine(Protocol):
    """What answers and trains by default: a backend and trainers that share what they have loaded."""

    @property
    def backend(self) -> "Backend":
        """The backend that answers for its base models."""
        ...

    @property
    def trainers(self) -> "Sequence[Trainer]":
        """The trainers of its base models."""
        ...

    def folder_of(self, base_model: str) -> str | None:
        """Return the folder of a base model, if it has one."""
        ...

    def source_of(self, base_model: str) -> Mapping[str, str]:
        """Return the `hub_id` and the `revision` of a base model of a hub."""
        ...

    def prepare(self) -> Sequence[str]:
        """Set up what must be set before anything is loaded; return the modules that jobs load slowly."""
        ...

    def close(self) -> None:
        """Release the models that were loaded."""
        ...


class JobCluster(Protocol):
    """A cluster that jobs can run in."""

    @property
    def name(self) -> str:
        """The name of the cluster, for people."""
        ...

    def check(self) -> None:
        """Raise `ClusterError` if it is not there, or refuses."""
        ...

    def executor(self, factory: str, arguments: Sequence[str], python: str, log: str) -> "Executor":
        """Return what runs jobs there, for which `factory` opens the platform; their logs are "text" or "json"."""
        ...


class Notes(Protocol):
    """What people have noted on jobs, runs, models and checkpoints."""

    def tagged(self, tag: str) -> frozenset[str]:
        """Return the ids of the jobs and runs that have a tag."""
        ...

    def of(self, subject: str) -> Mapping[str, Any]:
        """Return what is noted on a subject, to be shown with it."""
        ...


class Site(Protocol):
    """Pages for people, next to an API."""

    def handle(self, request: "Request") -> "Response":
        """Answer a request with a page, or pass it to the API."""
        ...

    async def ahandle(self, request: "Request") -> "Response":
        """Answer as `handle` does, on an event loop that is never blocked."""
        ...


class TrainedRecord(Protocol):
    """What a part has prepared for the end of a training job."""

    def add(self, tx: "Tx", now: Any) -> Mapping[str, Any]:
        """Record it in the transaction that ends the job. Returns members of the job's result."""
        ...


class Capture(Protocol):
    """What keeps the answers to a caller, and may choose who gives them, and how they are asked for."""

    @property
    def model(self) -> str:
        """What a name means that no model has."""
        ...

    def asks(self, running: Any, request: "CompletionRequest", capabilities: Any) -> "CompletionRequest":
        """Return what the model is asked for a request, perhaps for details, and with a seed."""
        ...

    def chosen(self, running: Any) -> str:
        """Return the name of the model that answers a request: "" for the one that it names."""
        ...

    def __call__(
        self, running: Any, completion: Any, keep: "Callable[[Tx], object] | None"
    ) -> "Callable[[Tx], object]":
        """Return what keeps an answer, after `keep`, in the transaction that books it, unless all data were deleted."""
        ...


class Named(Protocol):
    """What a part serves under a name: a model that is asked in a way of its own."""

    @property
    def model(self) -> str:
        """The name of the model that answers, to which usage is booked."""
        ...

    @property
    def name(self) -> str:
        """The name that always means the same."""
        ...

    @property
    def ref(self) -> "ObjectRef":
        """The reference under which it is evaluated."""
        ...

    def asks(self, request: "CompletionRequest") -> "CompletionRequest":
        """Return what the model is asked for a request. Raises `InvalidInput`."""
        ...

    def row(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a row of an evaluation with the prompt that its fields make, if it has none."""
        ...


def _no_trained_record(runtime: "Runtime", job: "Job", loose: list[str]) -> "TrainedRecord | None":
    return None


@attrs.frozen(eq=False)
class Part:
    """What one optional capability adds to a platform. Nothing of it is loaded before it is used.

    `records` are the classes that it stores, and `changes` those of their tables (their names begin with the name of
    the part and a slash). `resources` are attributes of the platform, or with a dot those of `platform.models`,
    `.training`, `.evaluations`, `.jobs` and `.compat`: functions that return a class, or any function of a runtime and
    a principal. `moved` says where members are that were attributes of the platform before. `job_types` are its kinds
    of jobs, each loaded by the first job of the kind.

    `interfaces` are those that it brings, and `routes` are its routes by the name of their interface; those under "",
    which are public, are mounted next to the OpenAPI document, whichever interfaces are. The file
    `openapi_examples.json` in its folder may have examples of their requests and answers, by the names of operations.
    `site` makes the pages for people, `pages` are added to them, and `commands` to the command line. `notes` reads what
    people have noted on jobs.

    `engine` is what answers and trains by default, besides the echo and the tabular models; it gets the store, or None
    if that is new. `stores`, `artifacts` and `clusters` open what has an address with this scheme, as in "s3"; each
    comes with an example. `trained` prepares what is recorded at the end of a training job, and adds the names of its
    artifacts to the list that it gets. `row_formats` makes a host's format of rows read other forms. `trajectories`
    reads another form of them; with `trained=True`, it refuses those of which it cannot tell what is trained.

    `on_event` is called in the transaction in which something happens, with what has happened: the `Job` or the
    `EvaluationRun` that has ended, the `Promotion` that has moved an alias, the `Budget` of which it is time to warn.
    What it raises undoes the transaction, which may run again and may have to stay with one entity: the records that
    it writes are declared with `domain=("entity", "entity")`. `upkeep` is called each second while a platform is
    served, and by each worker, in a thread of its own.

    `captures` returns what keeps the answers that a caller gets under a name, or None. `submits` queues a training job
    on data of its own kind, with the arguments of `platform.training.submit`; None for other data. `names` returns what
    the part serves under a name that no model has; None for one that is not of its form. `prices` returns a
    `ServedModel` with prices by prompt and time. `remarks` yields what reports of a run, or of a baseline and a
    candidate, say besides, given their options. `evaluates` is called in the place of `evaluations.job.evaluate`.
    `keeps` returns which steps of a model may not be deleted, with the reason, "" where only retention keeps one."""

    name: str
    records: "Callable[[], Sequence[Record]]" = tuple
    changes: "Callable[[], Sequence[SchemaChange]]" = tuple
    resources: "Mapping[str, Callable[[], Resource]]" = EMPTY
    moved: "Mapping[str, str]" = EMPTY
    job_types: "Mapping[str, Callable[[], JobType]]" = EMPTY
    interfaces: "Callable[[], Sequence[Interface]]" = tuple
    routes: "Mapping[str, Routes]" = EMPTY
    pages: Callable[[], Sequence[DashboardPage]] = tuple
    commands: Mapping[str, Command] = EMPTY
    engine: "Callable[[Store | None], DefaultEngine] | None" = None
    stores: Mapping[str, StoreAddress] = EMPTY
    artifacts: "Mapping[str, tuple[str, OpenArtifacts]]" = EMPTY
    clusters: "Mapping[str, tuple[str, Callable[[str], JobCluster]]]" = EMPTY
    site: "Callable[[Platform], Callable[..., Site]] | None" = None
    notes: "Callable[[Platform], Notes] | None" = None
    trained: "Callable[[Runtime, Job, list[str]], TrainedRecord | None]" = _no_trained_record
    row_formats: "Callable[[], Callable[[RowFormat[Any]], RowFormat[Any]]] | None" = None
    trajectories: "Callable[[], Callable[..., Trajectory]] | None" = None
    on_event: "Callable[[Runtime, Tx, object], None] | None" = None
    upkeep: "Callable[[Runtime], None] | None" = None
    captures: "Callable[[Runtime, Snapshot, Principal, str], Capture | None] | None" = None
    submits: "Callable[..., Any] | None" = None
    names: "Callable[[Runtime, Snapshot, Principal, str], Named | None] | None" = None
    prices: "Callable[[Runtime, Snapshot, Any], Any] | None" = None
    remarks: "Callable[[Runtime, Sequence[EvaluationRun], Mapping[str, Any]], Iterable[str]] | None" = None
    evaluates: "Callable[..., Generator[None, None, None]] | None" = None
    keeps: "Callable[[Snapshot, Model], Mapping[int, str]] | None" = None


def standard_parts() -> Sequence[Part]:
    """Return the parts that ship with this library: none if their folder was deleted."""
    try:
        found: Sequence[Part] = import_module("modelyard.parts").STANDARD
    except ModuleNotFoundError as missing:
        if missing.name != "modelyard.parts":
            raise
        return ()
    return found


_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+:)/|file:|:memory:$|\s*$")


def meant_as_address(path: object) -> str | None:
    """Return how the address begins that this string is, or is meant as ("s3:/bucket"; "" is none); None for a path."""
    found = _ADDRESS.match(path) if isinstance(path, str) else None
    return None if found is None else found[1] or found[0].strip() or "''"


def refuse_address(path: object, wanted: str) -> None:
    """Raise `InvalidInput` for an address where the path of a file is `wanted`."""
    scheme = meant_as_address(path)
    if scheme is not None:
        raise InvalidInput.at("path", msg=f"{wanted}, and not an address that begins with {scheme}")


def check_place(path: Any, wanted: str = "name the path of a file") -> None:
    """Raise `InvalidInput` for an address where a path is `wanted`, and for a place in a folder that is not there."""
    refuse_address(path, wanted)
    if not os.path.isdir(parent := os.path.dirname(os.path.abspath(path))):
        raise InvalidInput.at("path", msg=f"there is no folder {parent}; make it first, or name another place")


def by_scheme(parts: Iterable[Part], kind: str) -> Mapping[str, Any]:
    """Return what opens each scheme of an address, of the `kind` "stores" or "artifacts", with an example."""
    return {scheme: opener for part in parts for scheme, opener in getattr(part, kind).items()}
