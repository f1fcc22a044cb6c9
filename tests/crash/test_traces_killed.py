"""A server that is killed between any two commits of a client of traces: what it has acknowledged is there, and what
the client sends again is there once.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from tracing_process import REQUESTS, TracingClient

from modelyard import Platform, open_platform
from modelyard.domain.canonical import canonical_json
from modelyard.parts.traces.http.documents import call_document
from modelyard.parts.traces.objects import value_of
from modelyard.parts.traces.records import TracedFile, TracedTable
from modelyard.platform.paging import iter_index_live
from sampled import sampled
from warm_python import WarmPython

pytestmark = pytest.mark.crash

PLACE = {"entity": "acme", "project": "traced"}
COMMITS, PUTS = 27, 4
"""How many there are; the tests hold that."""
MOMENTS = [
    *(f"commit {number} after" for number in range(1, COMMITS + 1)),
    *(f"commit {number} inside" for number in range(1, COMMITS + 1, 4)),
    *(f"put {number} {at}" for number in range(1, PUTS + 1) for at in ("half", "after")),
]

State = frozenset[tuple[str, str]]


def state(platform: Platform) -> State:
    """All that clients have written, each once."""
    return frozenset(_listed(platform))


def _listed(platform: Platform) -> Iterator[tuple[str, str]]:
    traces, runtime = platform.compat.traces, platform._runtime
    for call in traces.calls.list(**PLACE):  # type: ignore[arg-type]
        yield f"call {call.id}", canonical_json(call_document(call))
    for said in traces.feedback.list(**PLACE):  # type: ignore[arg-type]
        yield f"feedback {said.id}", canonical_json([said.ref, said.payload])
    for version in traces.objects.list(**PLACE):  # type: ignore[arg-type]
        yield f"object {version.object_id}:{version.index}", canonical_json(value_of(version))
    for table in iter_index_live(runtime, TracedTable, "all"):
        yield f"table {table.digest}", canonical_json([row.value for row in traces.tables.rows(table.digest, **PLACE)])
    for file in iter_index_live(runtime, TracedFile, "all"):
        opened, size = traces.tables.open_file(file.digest, **PLACE)
        with opened:
            yield f"file {file.digest}", f"{size} {opened.read()!r}"


@attrs.frozen
class Begun:
    """A folder with an empty store, the key of a client, and the states that its requests make, one after the other."""

    folder: Path
    key: str
    python: str
    states: tuple[State, ...]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory, warm_python: WarmPython) -> Begun:
    folder, states = tmp_path_factory.mktemp("begun"), list[State]()
    with open_platform(folder / "yard.db") as platform:
        key = platform.keys.create("acme").secret
    shutil.copytree(folder, folder / "undisturbed")
    with open_platform(folder / "undisturbed" / "yard.db") as platform:
        client = TracingClient.of(platform, key)
        states.append(state(platform))
        for request in REQUESTS:
            client.send(*request)
            states.append(state(platform))
    shutil.rmtree(folder / "undisturbed")
    return Begun(folder, key, warm_python.executable, tuple(states))


def served(begun: Begun, path: Path, moment: str = "") -> tuple[int, list[list[Any]]]:
    """The exit status of a server that dies at a moment, and what it told."""
    command = [begun.python, str(Path(__file__).with_name("tracing_process.py")), str(path), begun.key, moment]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    return done.returncode, [json.loads(line)[1:] for line in done.stdout.splitlines()]


def test_every_moment_is_known(begun: Begun, tmp_path: Path) -> None:
    shutil.copytree(begun.folder, tmp_path, dirs_exist_ok=True)
    status, printed = served(begun, tmp_path / "yard.db")
    moments = {line[1].rpartition(" ")[0] for line in printed if line[0] == "at" and line[1].endswith(" after")}
    assert status == 0
    assert len([line for line in printed if line[0] == "acknowledged"]) == len(REQUESTS)
    assert moments == {one.rpartition(" ")[0] for one in MOMENTS}


@pytest.mark.parametrize("moment", sampled(MOMENTS, 5))
def test_what_was_acknowledged_is_there_and_what_is_sent_again_is_there_once(
    begun: Begun, tmp_path: Path, moment: str
) -> None:
    shutil.copytree(begun.folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "yard.db"
    status, printed = served(begun, path, moment)
    assert status == -9
    acknowledged = len([line for line in printed if line[0] == "acknowledged"])
    before, after = begun.states[acknowledged], begun.states[min(acknowledged + 1, len(REQUESTS))]
    with open_platform(path) as platform:
        found = state(platform)
        assert before & after <= found <= before | after
        client = TracingClient.of(platform, begun.key)
        for request in REQUESTS[acknowledged:]:
            client.send(*request)
        assert state(platform) == begun.states[-1]
        for request in REQUESTS:  # a client that has forgotten what was acknowledged
            client.send(*request)
        assert state(platform) == begun.states[-1]
