"""Bodies with trajectory groups, which may be large: read once, a trajectory at a time, into an artifact."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from modelyard.domain.training import Trajectory
from modelyard.errors import InvalidInput, located_at
from modelyard.formats.json_stream import JsonReader, file_chunks
from modelyard.formats.trajectories import dump_group_end, dump_trajectory, group_around, trajectory_of
from modelyard.http.route import RouteCall
from modelyard.platform.training.data import trajectory_reader
from modelyard.protocols import StoredArtifact

_GROUPS, _TRAJECTORIES = "trajectory_groups", "trajectories"


class GroupsBody:
    def __init__(self, chunks: Iterable[bytes], read: Callable[[Any], Trajectory] = trajectory_of) -> None:
        self._read = read
        self._reader = JsonReader(chunks, at=("body",))
        self.rest: dict[str, Any] = {}
        """The other members of the body, complete after all lines are read; the groups are an empty list in it."""

    def lines(self) -> Iterator[bytes]:
        for name in self._reader.members():
            if name == _GROUPS and not self._reader.is_null():
                self.rest[name] = []
                for group in self._reader.elements(name):
                    yield from self._group(group)
            else:
                self.rest[name] = self._reader.take(name)
        self._reader.end()

    def _group(self, group: int) -> Iterator[bytes]:
        place = (_GROUPS, group)
        rest: dict[str, Any] = {}
        found = False
        for name in self._reader.members(*place):
            if name == _TRAJECTORIES and not self._reader.is_null():
                found = True
                for member in self._reader.elements(*place, name):
                    data = self._reader.take(*place, name, member)
                    with located_at("body", *place, name, member):
                        line = dump_trajectory(self._read(data))
                    yield line
            else:
                rest[name] = self._reader.take(*place, name)
        if not found:
            raise InvalidInput.at("body", *place, _TRAJECTORIES, msg="is required", type="missing")
        with located_at("body", *place):
            end = dump_group_end(group_around((), rest))
        yield end


@contextmanager
def groups_body(call: RouteCall, trained: bool = False) -> Iterator[tuple[Mapping[str, Any], StoredArtifact]]:
    """Read the other members of a body, and its groups as an artifact, which is removed unless the block records it."""
    body = GroupsBody(file_chunks(call.file), trajectory_reader(call.platform.parts, trained))
    stored = call.spool.put(body.lines())
    with call.spool.remove_unless_recorded(stored):
        yield body.rest, stored
