"""After `delete_entity` returns, no record of the entity appears, whoever still has its key or answers it."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from http_client import client_of
from modelyard import Platform, open_platform
from modelyard.artifacts.memory import MemoryArtifacts
from modelyard.backends import EchoBackend
from modelyard.domain.schema import RECORDS
from modelyard.errors import ModelyardError
from polling import until

CHAT = "/inference/v1/chat/completions"
BODY = {"model": "echo", "messages": [{"role": "user", "content": "hello"}], "store": True}
ASK = f"""
import sys
sys.path[:0] = sys.argv[3:]
import attrs
from http_client import client_of
from modelyard import open_platform
from modelyard.artifacts.memory import MemoryArtifacts

with open_platform(sys.argv[1], artifacts=MemoryArtifacts()) as platform:
    client, asked = attrs.evolve(client_of(platform), key=sys.argv[2]), 0
    while (answer := client.send("POST", {CHAT!r}, {BODY!r})).status == 200:
        asked += 1
        if asked == 5:
            print("asking", flush=True)
    print(answer.status, flush=True)
"""


def left_of(platform: Platform, entity: str) -> dict[str, int]:
    """How many records of each class are an entity's."""
    found = {
        record.table: platform._runtime.store.read(
            lambda snapshot, cls=record.cls: len(snapshot.page(cls, "by_entity", entity, limit=1000))
        )
        for record in RECORDS
        if "by_entity" in record.indexes
    }
    return {table: count for table, count in found.items() if count}


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.servers)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "yard.db") if request.param == "sqlite" else request.getfixturevalue("yard_address")


@pytest.mark.slow
def test_a_process_that_remembers_a_key_leaves_nothing_of_its_entity(place: str) -> None:
    with open_platform(place, artifacts=MemoryArtifacts()) as platform:
        key = platform.keys.create("acme")
        path = [str(Path(__file__).parents[2] / "shared"), *filter(None, sys.path)]
        with subprocess.Popen(
            [sys.executable, "-c", ASK, place, key.secret, *path], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "asking\n"
            assert platform.delete_entity("acme") > 5
            assert child.stdout.readline() == "401\n"
        assert left_of(platform, "acme") == {}
        assert list(platform.usage.total(entity="acme")) == list(platform.usage.total(entity="nobody"))


class Slow(EchoBackend):
    """Answers when it is let go."""

    blocking = True

    def __init__(self) -> None:
        super().__init__(("echo",))
        self.asked, self.go = threading.Event(), threading.Event()

    def stream(self, *given: Any) -> Iterator[Any]:
        self.asked.set()
        assert self.go.wait(20)
        yield from super().stream(*given)


@pytest.mark.parametrize("budget", [False, True])
def test_a_request_under_way_here_is_ended_and_not_booked(tmp_path: Path, budget: bool) -> None:
    backend = Slow()
    with open_platform(tmp_path / "yard.db", backend=backend) as platform:
        if budget:
            platform.usage.set_budget("5", entity="acme")
        ended = list[str]()

        def ask() -> None:
            try:
                platform.chat.complete(model="echo", messages="hello there", entity="acme", store=True)
                ended.append("answered")
            except ModelyardError as error:
                ended.append(str(error))

        thread = threading.Thread(target=ask)
        thread.start()
        assert backend.asked.wait(20)
        platform.delete_entity("acme")
        backend.go.set()
        thread.join()
        assert ended == ["the entity of this request was deleted"]
        assert left_of(platform, "acme") == {}
        until(lambda: not platform._runtime.cache.bookings)
        assert left_of(platform, "acme") == {}


@pytest.mark.slow
def test_a_key_is_refused_once_its_entity_is_deleted(tmp_path: Path) -> None:
    with open_platform(tmp_path / "yard.db") as platform:
        theirs = attrs.evolve(client_of(platform), key=platform.keys.create("acme").secret)
        assert theirs.send("POST", CHAT, BODY).status == 200
        platform.delete_entity("acme")
        assert theirs.send("POST", CHAT, BODY).status == 401
        assert left_of(platform, "acme") == {}
