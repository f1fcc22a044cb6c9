"""What the laws of a part stand on: platforms with and without the part, what they keep, and requests to them."""

import random
from base64 import b64encode
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count, islice, product
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import quote

import attrs
import pytest

from modelyard.compose import open_platform
from modelyard.domain.identity import Principal, Scope, host
from modelyard.domain.job import Job, JobProgress
from modelyard.domain.record import Record
from modelyard.http.endpoint import Endpoint
from modelyard.http.interface import Auth
from modelyard.http.interfaces import interfaces_of
from modelyard.http.message import Request
from modelyard.http.response_bodies import close
from modelyard.http.route import Route
from modelyard.part import Part, standard_parts
from modelyard.parts.copying import Scannable
from modelyard.platform.platform import Platform
from modelyard.testing.clock import ManualClock

ONE, OTHER = "acme", "globex"
"""The entity whose data a part keeps, and another tenant."""

MOST = 10_000
"""How many records of a class are looked at."""

_NUMBERS = count(1)

Rows = Mapping[str, Mapping[tuple[Any, ...], tuple[Any, ...]]]
"""The records of each table by their keys."""


class PartHooks:
    """What the author of a part gives to the laws."""

    of_host: Collection[type] = ()
    shared: Collection[str] = ()
    home: str = ""

    @pytest.fixture
    def part(self) -> Part:
        raise NotImplementedError("override the fixture `part` to return your part")

    @pytest.fixture
    def trial(self, part: Part, tmp_path: Path) -> "PartTrial":
        """Return platforms with the part, next to the standard parts, and without it."""
        others = [other for other in standard_parts() if other.name != part.name]
        return PartTrial(part, others, tmp_path)

    def fill(self, platform: Platform) -> None:
        """Store a record of every class of the part, as the host whose own entity is one tenant."""

    def clear(self, platform: Platform) -> None:
        """Delete what `fill` has stored, as a user does who needs it no longer."""
        pytest.skip("`clear` is not overridden: what is deleted is not looked at")


class HttpAnswer(NamedTuple):
    """The answer that a trial was sent over HTTP."""

    status: int
    headers: Mapping[str, str]
    text: str


@attrs.frozen(eq=False)
class PartTrial:
    """A part, the others that a platform is opened with, and a folder for stores."""

    part: Part
    others: Sequence[Part]
    folder: Path

    @property
    def routes(self) -> Sequence[Route]:
        """The routes of the part."""
        return [route for routes in self.part.routes.values() for route in routes()]

    @contextmanager
    def opened(self, path: Path | None = None, *, without: bool = False) -> Iterator[Platform]:
        """Open a platform of the host, on a clock that stands still; `without` the part if that is asked for."""
        parts = [*self.others] if without else [*self.others, self.part]
        randomness = random.Random(11).randbytes  # noqa: S311 - the same ids in each run
        path = path or self.folder / f"{next(_NUMBERS)}.db"
        options: Any = {"durability": "process", "clock": ManualClock(), "randomness": randomness}
        with open_platform(path, parts=parts, **options) as platform:
            yield platform

    @contextmanager
    def filled(self, fill: Callable[[Platform], None]) -> Iterator[tuple[Platform, Platform]]:
        """Open a platform with what the part keeps of one tenant, and its twin, which has nothing of it."""
        with self.opened() as platform, self.opened() as twin:
            fill(as_entity(platform, ONE))
            yield platform, twin

    def rows(self, platform: Platform) -> Rows:
        """Return the records of the part."""
        return rows_of(platform, self.part.records())

    def pages(self, platform: Platform, reader: Principal) -> "Ask":
        """Return what asks for a page of the dashboard, as this reader."""
        site = platform.site(reader=reader)

        def ask(path: str) -> HttpAnswer:
            request = Request("GET", path, "", [("host", "localhost")], iter(()))
            return _answer(site.handle(request))

        return ask


Ask = Callable[[str], HttpAnswer]


def as_entity(platform: Platform, entity: str) -> Platform:
    """Return the platform as the host sees it whose own entity this is."""
    return platform.acting_as(host(entity))


def tenant(entity: str) -> Principal:
    """Return a caller who may use one entity, and no other."""
    return Principal("tenant", entity, Scope(entity), "tenant")


def rows_of(platform: Platform, records: Sequence[Record]) -> Rows:
    """Return the records of these classes, by their tables and keys."""

    def query(snapshot: Any) -> Rows:
        scannable = cast(Scannable, snapshot)
        found: dict[str, dict[tuple[Any, ...], tuple[Any, ...]]] = {}
        for record in records:
            kept: list[Any] = scannable.scan(record.cls, None, MOST)
            found[record.table] = {record.key_of(one): attrs.astuple(one, recurse=False) for one in kept}
        return found

    return platform._runtime.store.read(query)


def watched(platform: Platform, part: Part) -> Sequence[Record]:
    """Return the records that another tenant may not change: those of the part, and jobs."""
    jobs = [record for record in platform._runtime.records if record.cls in (Job, JobProgress)]
    return [*part.records(), *jobs]


def files_of(platform: Platform) -> set[str]:
    """Return the names of all artifacts."""
    return {*platform._runtime.artifacts.names()}


def strings_in(value: object) -> Iterator[str]:
    """Yield every string within a value that is long enough to be recognized."""
    if isinstance(value, str):
        if len(value) >= 4:
            yield str(value)
    elif isinstance(value, Mapping):
        for name, one in value.items():
            yield from strings_in(name)
            yield from strings_in(one)
    elif isinstance(value, list | tuple | set | frozenset):
        for one in value:
            yield from strings_in(one)


def addresses(path: str, known: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield a route's path with what is known for its parameters: values of this name, or else any id."""
    segments = path.split("/")
    names = [segment[1:-1] for segment in segments if segment.startswith("{")]
    choices = [known.get(name.removesuffix("..."), known[""]) for name in names]
    for values in islice(product(*choices), 200):
        left = iter(values)
        yield "/".join(
            quote(next(left), safe="/" if segment.endswith("...}") else "") if segment.startswith("{") else segment
            for segment in segments
        )


class HttpCaller:
    """Asks a platform over HTTP with the key of one entity."""

    def __init__(self, platform: Platform, entity: str) -> None:
        self.secret: str = platform.keys.create(entity).secret
        self._endpoint = Endpoint(platform, interfaces_of(platform.parts))

    def ask(self, method: str, path: str, auth: Auth, body: bytes = b"", *, known: bool = True) -> HttpAnswer:
        """Ask, with a key unless the caller is not to be `known`."""
        raw, _, query = path.partition("?")
        headers = [("host", "localhost"), ("content-type", "application/json")]
        if known:
            headers += self._credentials(auth)
        return _answer(self._endpoint.handle(Request(method, raw, query, headers, iter([body] if body else []))))

    def _credentials(self, auth: Auth) -> list[tuple[str, str]]:
        if auth in (Auth.PUBLIC, Auth.ADDRESS):
            return []
        if auth is Auth.BASIC:
            return [("authorization", f"Basic {b64encode(f'name:{self.secret}'.encode()).decode()}")]
        return [("authorization", f"Bearer {self.secret}")]


def _answer(response: Any) -> HttpAnswer:
    body = response.body
    raw = body if isinstance(body, bytes) else b"".join(islice(body, 1000))
    close(body)
    return HttpAnswer(response.status, dict(response.headers), raw.decode("utf-8", "replace"))
