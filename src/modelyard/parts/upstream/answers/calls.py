"""The tool calls of one choice, told apart by what servers send: ids, indexes, names, or only their order."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from modelyard.domain.completion import ToolCallDelta
from modelyard.parts.upstream.answers.arguments import Arguments, is_json, may_begin_json
from modelyard.parts.upstream.answers.values import (
    Halves,
    arguments_of,
    index_of,
    object_of,
    objects_of,
    string_of,
)

UNNAMED = "unnamed_tool"
"""The name of a call that has none, in a request with several tools."""


@attrs.define(eq=False)
class _Call:
    """A call as far as it has come; `waiting` are the pieces of its arguments that were not passed on yet.

    It is `unsure` while only a name has come that the call before has, too: either that was said again, or the
    arguments of another call follow.
    """

    place: int
    index: int | None
    unsure: bool
    server_id: str = ""
    name: str = ""
    shown: bool = False
    taken: Arguments = attrs.field(factory=Arguments)
    halves: Halves = attrs.field(factory=Halves)
    pieces: list[str] = attrs.field(factory=list)
    waiting: list[str] = attrs.field(factory=list)

    def take(self, arguments: str) -> None:
        """Take the next piece of the arguments, as the server has sent it."""
        if self.holds_nothing and arguments.lstrip().startswith("{"):
            self.taken = Arguments()
            self.pieces.clear()
            self.waiting.clear()
        self.add(self.halves.take(self.taken.take(arguments)))

    def end(self) -> None:
        """Take what waits for more of the arguments."""
        self.add(self.halves.take(self.taken.end()))

    def add(self, arguments: str) -> None:
        if arguments:
            self.pieces.append(arguments)
            self.waiting.append(arguments)

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)

    @property
    def holds_nothing(self) -> bool:
        """Whether all that has come is an empty object, and waits: some servers begin with one in any case."""
        return len(self.pieces) == len(self.waiting) and self.arguments.strip() == "{}"

    @property
    def whole(self) -> bool:
        """Whether its arguments are a whole object."""
        ended = self.pieces and self.pieces[-1].rstrip().endswith("}")
        if ended and is_json(self.arguments):
            return True
        return self.taken.last.rstrip().endswith("}") and is_json(self.taken.last)


@attrs.frozen
class _Piece:
    id: str
    index: int | None
    name: str
    arguments: str


def pieces_of(message: Mapping[str, Any]) -> list[_Piece]:
    """Read the pieces of calls in a message or in a delta: in their list, which may be JSON text, or among the parts of
    the content. One `function_call` is the format's older way.
    """
    given = message.get("tool_calls")
    pieces = [_piece(call) for call in objects_of(_parsed(given) if isinstance(given, str) else given)]
    pieces += [_piece(part) for part in objects_of(message.get("content")) if part.get("type") in _CALLS]
    older = object_of(message.get("function_call"))
    return pieces or ([_piece({"index": 0, "function": older})] if older else [])


_CALLS = frozenset({"tool_use", "tool_call", "function_call"})
"""Types of parts of a content that are calls."""


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _piece(call: Mapping[str, Any]) -> _Piece:
    function = _object(call.get("function")) or object_of(call.get("custom")) or call
    names = (name for name in ("arguments", "parameters", "input") if function.get(name) is not None)
    given = function.get(next(names, "arguments"))
    named = call.get("id") or call.get("call_id")
    id_ = str(named) if isinstance(named, int) and not isinstance(named, bool) else string_of(named)
    return _Piece(id_, index_of(call.get("index")), string_of(function.get("name")), arguments_of(given))


def _object(value: Any) -> Mapping[str, Any]:
    return object_of(_parsed(value) if isinstance(value, str) else value)


def _is_other(call: _Call, piece: _Piece) -> bool:
    """Return whether a piece at the place of a call is a piece of any call, or another call, and not the same again."""
    if not piece.name or (piece.index is not None and piece.index not in (call.place, call.index)):
        return True
    is_new = bool(piece.id and call.server_id) and piece.id != call.server_id  # some servers give the same a new id
    return is_new and (piece.name, piece.arguments) != (call.name, call.arguments)


class CallReader:
    """Joins the pieces of the calls of one choice, and passes each on as soon as its name is certain.

    A new id that comes with a name is a new call, even under the index of another one. A known id, or a known index,
    continues its call, and a piece with neither the last one. A name that comes where no id tells begins a new call if
    the arguments of the call before are whole.
    """

    def __init__(self, choice: int, tools: Sequence[str]) -> None:
        self._choice, self._tools = choice, tools
        self._calls: list[_Call] = []

    def __bool__(self) -> bool:
        return bool(self._calls)

    def take(self, pieces: Sequence[_Piece], whole: bool) -> list[ToolCallDelta]:
        """Return what can be passed on with these pieces. Each named piece of a `whole` answer is a call."""
        deltas: list[ToolCallDelta] = []
        before = len(self._calls)
        for piece in pieces:
            call = None if whole and piece.name else self._of_id(piece) or self._of_index(piece, before)
            if call is None:
                deltas += self._passed(self._calls[-1:], certain=True)
                call = self._begun(piece, not whole and self._is_unsure(piece, before))
            if not piece.arguments or piece.arguments != call.arguments or not call.whole:  # else said again
                self._add(call, piece)
            deltas += self._passed([call], certain=whole)
        return deltas

    def take_again(self, pieces: Sequence[_Piece]) -> list[ToolCallDelta]:
        """Return what the calls of another message add: those that have begun may stand before the others."""
        known = list(zip(self._calls, pieces, strict=False))
        if any(_is_other(call, piece) for call, piece in known):
            return self.take(pieces, False)
        deltas = [delta for call, piece in known for delta in self._grown(call, piece)]
        return deltas + self.take(pieces[len(known) :], True)

    def end(self) -> list[ToolCallDelta]:
        """Return what still waits. A call without any name is one of the only tool there is, or of `UNNAMED`."""
        return list(self._passed([call for call in self._calls if not call.unsure], certain=True, over=True))

    # ---- the call of a piece

    def _of_id(self, piece: _Piece) -> _Call | None:
        """Return the call that has the piece's id, unless the piece begins another one under the same id."""
        found = (call for call in reversed(self._calls) if piece.id and call.server_id == piece.id)
        call = next(found, None)
        if call is None or not piece.name:
            return call
        if piece.index is not None and call.index is not None and piece.index != call.index:
            return None
        again = piece.name == call.name and piece.arguments in ("", call.arguments)
        return call if again or not self._begins(call, piece.name, False) else None

    def _of_index(self, piece: _Piece, before: int) -> _Call | None:
        """Return the call that a piece continues which no id tells; None for a new one."""
        call = self._last_at(piece)
        if call is None:
            return None
        if not piece.name:
            after = piece.id and piece.index is None and call.server_id and call.whole
            return None if after else call
        if piece.id:  # which comes late, of a call that has begun without it
            late = not call.server_id and not call.pieces and piece.name == call.name and piece.index is not None
            return call if late else None
        return None if self._begins(call, piece.name, piece.index is None and call.place >= before) else call

    def _last_at(self, piece: _Piece) -> _Call | None:
        """Return the last call of the piece's index, or the last of all for a piece without one."""
        last = self._calls[-1] if self._calls else None
        if piece.index is None or (last is not None and last.index is None and not piece.name):
            return last
        return next((call for call in reversed(self._calls) if call.index == piece.index), None)

    def _begins(self, call: _Call, name: str, apart: bool) -> bool:
        """Return whether a name that comes after the beginning of a call is that of another one, and neither its next
        piece nor the same again. `apart` means that both stand in one list, and that nothing else tells them apart.
        """
        if not call.name:
            return False
        if call.pieces:
            return call.whole or name != call.name
        if call.name in self._tools and name in self._tools:
            return apart or name != call.name
        return apart and call.name + name not in self._tools

    def _begun(self, piece: _Piece, unsure: bool) -> _Call:
        self._calls.append(_Call(len(self._calls), piece.index, unsure))
        return self._calls[-1]

    def _is_unsure(self, piece: _Piece, before: int) -> bool:
        call = None if piece.id or piece.arguments else self._last_at(piece)
        return call is not None and call.place < before and call.name == piece.name

    # ---- what is known of it

    def _grown(self, call: _Call, piece: _Piece) -> Iterator[ToolCallDelta]:
        """Yield what a call adds that is said again: the rest of its arguments, or the next piece of them."""
        call.end()
        said = call.arguments
        if piece.arguments.startswith(said):
            call.add(call.halves.take(piece.arguments[len(said) :]))
        elif not call.whole and may_begin_json(said + piece.arguments):
            call.add(call.halves.take(piece.arguments))
        call.name = call.name or piece.name
        yield from self._passed([call], certain=True)

    def _add(self, call: _Call, piece: _Piece) -> None:
        call.server_id = call.server_id or piece.id
        if piece.name and not call.shown:
            call.name = self._joined_name(call, piece.name)
        call.unsure = call.unsure and not piece.arguments
        call.take(piece.arguments)

    def _joined_name(self, call: _Call, name: str) -> str:
        """Return the name with its next piece, unless it is whole, or is said again."""
        longer = call.name + name
        if longer in self._tools or not call.name:
            return longer
        if call.pieces or call.name in self._tools:
            return call.name
        return name if name.startswith(call.name) else longer

    def _passed(self, calls: Sequence[_Call], certain: bool, over: bool = False) -> Iterator[ToolCallDelta]:
        """Yield what can be passed on of calls: all, if they are `certain` to have what they will have; `over` means
        that the answer has ended.
        """
        for call in calls:
            if over:
                call.end()
            if certain:
                call.add(call.halves.end())
            if over and not call.name:
                call.name = self._tools[0] if len(self._tools) == 1 else UNNAMED
            if not call.shown and not self._is_named(call, certain):
                continue
            arguments = ""
            if certain or not call.holds_nothing:
                arguments = "".join(call.waiting)
                call.waiting.clear()
            if not call.shown:
                call.shown = True
                yield ToolCallDelta(call.place, self._id(call), call.name, arguments)
            elif arguments:
                yield ToolCallDelta(call.place, arguments=arguments)

    def _is_named(self, call: _Call, certain: bool) -> bool:
        """Return whether the name of a call is known, and no more of it can come."""
        if not call.name or call.unsure:
            return False
        longer = any(tool != call.name and tool.startswith(call.name) for tool in self._tools)
        return certain or bool(call.pieces) or (call.name in self._tools and not longer)

    def _id(self, call: _Call) -> str:
        """Return an id of the call's own: the server's, if no other call of the choice has it."""
        same = any(other.server_id == call.server_id for other in self._calls[: call.place])
        return call.server_id if call.server_id and not same else f"call_{self._choice}_{call.place}"
