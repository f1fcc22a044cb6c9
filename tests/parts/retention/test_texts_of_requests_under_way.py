"""What began before its entity was deleted is stored by no process, and what begins after it is."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from example_counts import examples
from modelyard import Platform, open_platform
from modelyard.artifacts.memory import MemoryArtifacts
from modelyard.domain.schema import RECORDS
from modelyard.errors import Unauthenticated

ROW = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
WHOSE = {"entity": "acme", "project": "p"}


class Upload:
    """Something that is stored from pieces, between the first and the last of which anything may happen."""

    def __init__(self, store: Callable[[Iterator[Any]], object], *pieces: Any) -> None:
        self._pieces, self._begun, self._go = pieces, threading.Event(), threading.Event()
        self._refused = False
        self._thread = threading.Thread(target=self._run, args=(store,))
        self._thread.start()
        assert self._begun.wait(20)

    def _run(self, store: Callable[[Iterator[Any]], object]) -> None:
        try:
            store(self._slowly())
        except Unauthenticated:
            self._refused = True

    def _slowly(self) -> Iterator[Any]:
        yield self._pieces[0]
        self._begun.set()
        assert self._go.wait(20)
        yield from self._pieces[1:]

    def finish(self) -> bool:
        """Let the rest come. Returns whether it was taken."""
        self._go.set()
        self._thread.join()
        return not self._refused


class Stream:
    """An answer of which the first piece was read."""

    def __init__(self, pieces: Iterator[Any]) -> None:
        self._pieces = pieces
        next(pieces)

    def finish(self) -> bool:
        """Read the rest."""
        return bool([*self._pieces])


def stream(platform: Platform, number: int) -> Stream:
    chat: Any = platform.chat
    return Stream(iter(chat.stream(model="echo", messages=f"hello number {number}", store=True, **WHOSE)))


def response(platform: Platform, number: int) -> Stream:
    return Stream(iter(platform.compat.responses.stream(model="echo", input=f"hello number {number}", **WHOSE)))


def file(platform: Platform, number: int) -> Upload:
    return Upload(
        lambda data: platform.compat.files.create("a.txt", data, purpose="user_data", **WHOSE),
        b"a",
        f"{number}".encode(),
    )


def dataset(platform: Platform, number: int) -> Upload:
    return Upload(lambda rows: platform.training.upload(f"d{number}", rows, **WHOSE), ROW, ROW)


def published(platform: Platform, number: int) -> Upload:
    objects: Any = platform.evaluations.objects
    return Upload(lambda rows: objects.publish("dataset", f"d{number}", {}, rows, **WHOSE), {"n": number}, {"n": 2})


def table(platform: Platform, number: int) -> Upload:
    return Upload(lambda rows: platform.compat.traces.tables.create(rows, **WHOSE), {"n": number}, {"n": 2})


def calls(platform: Platform, number: int) -> Upload:
    traces = platform.compat.traces.calls
    begun = traces.start("op", {"n": number}, project="q", entity="other")
    return Upload(lambda batch: traces.record(batch, **WHOSE), begun, begun)


KINDS = [stream, response, file, dataset, published, table, calls]


def stored(platform: Platform) -> int:
    """How many records of texts an entity has."""
    read = platform._runtime.store.read
    texts = [record.cls for record in RECORDS if record.texts and "by_entity" in record.indexes]
    texts += [record.cls for record in RECORDS if record.table == "datasets"]
    return sum(
        read(lambda snapshot, cls=cls: len(snapshot.page(cls, "by_entity", "acme", limit=1000))) for cls in texts
    )


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.servers)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "yard.db") if request.param == "sqlite" else request.getfixturevalue("yard_address")


def test_an_answer_that_is_not_stored_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "yard.db"
    with open_platform(path) as here, open_platform(path) as there, caplog.at_level(logging.INFO):
        begun = [stream(there, 1), response(there, 2)]
        here.delete_entity("acme")
        assert all(one.finish() for one in begun)
        booked = [entry.id for entry in here.usage.list(entity="acme")]
        logged = [record.args[0] for record in caplog.records if "texts are not stored" in record.msg]  # type: ignore[index]
        assert len(booked) == 2
        assert sorted(map(str, logged)) == sorted(booked)
        assert stored(here) == 0


@pytest.mark.slow
def test_texts_of_what_began_before_are_stored_by_no_process(place: str) -> None:
    kinds = st.sampled_from(KINDS)
    with ExitStack() as stack:
        files = MemoryArtifacts()
        here, there = (stack.enter_context(open_platform(place, artifacts=files)) for _ in range(2))

        @settings(examples(20), deadline=None, suppress_health_check=[*HealthCheck])
        @given(before=st.lists(kinds, max_size=4), after=st.lists(kinds, max_size=3), swaps=st.booleans())
        def holds(before: list[Any], after: list[Any], swaps: bool) -> None:
            begun = [kind(there, number) for number, kind in enumerate(before)]
            here.delete_entity("acme")
            later = [kind(there if swaps else here, 100 + number) for number, kind in enumerate(after)]
            ended = [one.finish() for one in begun]
            assert not any(taken for taken, one in zip(ended, begun, strict=True) if isinstance(one, Upload))
            assert stored(here) == 0
            assert all(one.finish() for one in later)
            assert stored(here) >= len(after)
            assert stored(there) == stored(here)
            here.delete_entity("acme")
            assert stored(here) == 0

        holds()
