"""The tool calls of one choice, told apart by what servers send: ids, indexes, names, or only their order."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from modelyard.domain.completion import ToolCallDelta
from modelyard.parts.upstream.answers.values import (
    Halves,
    arguments_of,
    index_of,
    object_of,
    objects_of,
    size_of,
    string_of,
)

UNNAMED = "unnamed_tool"
"""The name of a call that has none, in a request with several tools."""


@attrs.define(eq=False)
class _Call:
    """A call as far as it has come; `waiting` are the pieces of its arguments that were not passed on yet."""

    place: int
    server_id: str = ""
    name: str = ""
    shown: bool = False
    halves: Halves = attrs.field(factory=Halves)
    pieces: list[str] = attrs.field(factory=list)
    waiting: list[str] = attrs.field(factory=list)

    def add(self, arguments: str) -> None:
        """Take the next piece of the arguments."""
        if arguments:
            self.pieces.append(arguments)
            self.waiting.append(arguments)

    @property
    def cut(self) -> bool:
        """Whether its arguments have begun and are not whole."""
        if not self.pieces or not self.pieces[-1].rstrip().endswith("}"):
            return bool(self.pieces)
        try:
            json.loads("".join(self.pieces))
        except ValueError:
            return True
        return False


@attrs.frozen
class _Piece:
    id: str
    index: int | None
    name: str
    arguments: str


def pieces_of(message: Mapping[str, Any]) -> list[_Piece]:
    """Read the pieces of calls in a message or in a delta; one `function_call` is the format's older way."""
    pieces = [_piece(call) for call in objects_of(message.get("tool_calls"))]
    older = object_of(message.get("function_call"))
    return pieces or ([_piece({"index": 0, "function": older})] if older else [])


def _piece(call: Mapping[str, Any]) -> _Piece:
    function = object_of(call.get("function")) or object_of(call.get("custom")) or call
    given = function.get("arguments", function.get("parameters", call.get("input")))
    named = call.get("id")
    id_ = str(named) if isinstance(named, int) and not isinstance(named, bool) else string_of(named)
    return _Piece(id_, index_of(call.get("index")), string_of(function.get("name")), arguments_of(given))


class CallReader:
    """Joins the pieces of the calls of one choice, and passes each on as soon as its name is certain.

    A new id that comes with a name is a new call, even under the index of another one. So is a name without an id,
    unless the call before still waits for the rest of its own. A piece without id and index continues the last call.
    """

    def __init__(self, choice: int, tools: Sequence[str]) -> None:
        self._choice, self._tools = choice, tools
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}

    def __bool__(self) -> bool:
        return bool(self._calls)

    @property
    def size(self) -> int:
        """How many bytes of names and arguments have been passed on, or wait."""
        return sum([size_of(call.name) + sum(map(size_of, call.pieces)) for call in self._calls])

    def take(self, pieces: Sequence[_Piece], whole: bool) -> list[ToolCallDelta]:
        """Return what can be passed on with these pieces. Each piece of a `whole` answer is a call."""
        deltas: list[ToolCallDelta] = []
        for at, piece in enumerate(pieces):
            call = None if whole else self._continued(piece, at if len(pieces) > 1 else None)
            if call is None:
                deltas += self._passed(self._calls[-1:], certain=True)
                call = self._begun()
            self._add(call, piece)
            deltas += self._passed([call], certain=whole)
        return deltas

    def end(self) -> list[ToolCallDelta]:
        """Return what still waits. A call without any name is one of the only tool there is, or of `UNNAMED`."""
        return list(self._passed(self._calls, certain=True, over=True))

    def _begun(self) -> _Call:
        self._calls.append(_Call(len(self._calls)))
        return self._calls[-1]

    def _continued(self, piece: _Piece, at: int | None) -> _Call | None:
        """Return the call that a piece continues; None if it begins one."""
        call = self._indicated(piece, at)
        if call is None or not piece.name or (piece.id and call.server_id == piece.id):
            return call
        if call.pieces or (piece.id and call.server_id):
            return call if call.name == piece.name and call.cut else None
        return call if piece.name in (call.name, self._joined_name(call, piece.name)[len(call.name) :]) else None

    def _indicated(self, piece: _Piece, at: int | None) -> _Call | None:
        """Return the call that a piece seems to belong to: by its index, its id, its place in the list, or the last."""
        if piece.index is not None:
            return self._by_index.get(piece.index)
        if piece.id:
            return next(
                (call for call in self._calls if call.server_id == piece.id), None if piece.name else self._last()
            )
        if at is not None and not piece.name and at < len(self._calls):
            return self._calls[at]
        return self._last()

    def _last(self) -> _Call | None:
        return self._calls[-1] if self._calls else None

    def _joined_name(self, call: _Call, name: str) -> str:
        """Return the name with its next piece, unless it is whole and the piece is another name."""
        if call.shown or not call.name:
            return call.name or name
        if call.name in self._tools and call.name + name not in self._tools:
            return call.name
        return call.name + name

    def _add(self, call: _Call, piece: _Piece) -> None:
        if piece.index is not None:
            self._by_index[piece.index] = call
        call.server_id = call.server_id or piece.id
        if piece.name and piece.name != call.name:
            call.name = self._joined_name(call, piece.name)
        call.add(call.halves.take(piece.arguments))

    def _passed(self, calls: Sequence[_Call], certain: bool, over: bool = False) -> Iterator[ToolCallDelta]:
        for call in calls:
            if certain:
                call.add(call.halves.end())
            if over and not call.name:
                call.name = self._tools[0] if len(self._tools) == 1 else UNNAMED
            if not call.shown and not self._named(call, certain):
                continue
            arguments = "".join(call.waiting)
            call.waiting.clear()
            if not call.shown:
                call.shown = True
                yield ToolCallDelta(call.place, self._id(call), call.name, arguments)
            elif arguments:
                yield ToolCallDelta(call.place, arguments=arguments)

    def _named(self, call: _Call, certain: bool) -> bool:
        """Return whether the name of a call is known, and no more of it can come."""
        if not call.name:
            return False
        longer = any(tool != call.name and tool.startswith(call.name) for tool in self._tools)
        return certain or bool(call.pieces) or (call.name in self._tools and not longer)

    def _id(self, call: _Call) -> str:
        """Return an id of the call's own: the server's, if no other call of the choice has it."""
        same = any(other.server_id == call.server_id for other in self._calls[: call.place])
        return call.server_id if call.server_id and not same else f"call_{self._choice}_{call.place}"
