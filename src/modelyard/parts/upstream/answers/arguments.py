"""The arguments of one call: most servers send them in pieces, and some with each piece all that came before it."""

import json
import re

_JSON = json.JSONDecoder(strict=False, parse_int=str)
_NUMBER_CUT = re.compile(r"|[.eE][-+]?")
_ESCAPE_CUT = re.compile(r"\\u[0-9a-fA-F]{0,4}\Z")
_WORDS = ("true", "false", "null", "NaN", "Infinity", "-Infinity")


class Arguments:
    """Takes the pieces of the arguments, and returns what each of them adds.

    Pieces repeat what was there if each begins with it, and all together are not JSON while the last one is. A piece
    waits while both are possible; each of the two ends at the first piece that does not fit.

    >>> pieces = Arguments()
    >>> pieces.take('{"a"'), pieces.take('{"a": 1'), pieces.take('{"a": 1}')
    ('{"a"', ': 1', '}')
    """

    def __init__(self) -> None:
        self.last: str = ""  # while it may be all that there is
        self._joined = ""
        self._passed = 0
        self._repeats: bool | None = None

    def take(self, piece: str) -> str:
        if self._repeats is False or not piece:
            return piece
        grows = piece.startswith(self.last)
        if self._repeats:
            before, self.last = self.last, piece if grows else self.last + piece
            return self.last[len(before) :]
        is_first, self._joined, self.last = not self._joined, self._joined + piece, piece
        if is_first:
            self._passed = len(piece)
            return piece
        may_repeat = grows and may_begin_json(piece)
        if may_repeat and may_begin_json(self._joined):
            return ""
        return self._decided(may_repeat)

    def end(self) -> str:
        if self._repeats is not None or len(self._joined) == self._passed:
            return ""
        return self._decided(not is_json(self._joined) and is_json(self.last))

    def _decided(self, repeats: bool) -> str:
        self._repeats = repeats
        whole = self.last if repeats else self._joined
        self.last = whole if repeats else ""
        return whole[self._passed :]


def is_json(text: str) -> bool:
    return _fault(text) is None


def may_begin_json(text: str) -> bool:
    """Return whether a text is JSON, or may become JSON with what follows it."""
    fault = _fault(text)
    if fault is None or fault.msg.startswith("Unterminated string") or _ESCAPE_CUT.search(text):
        return True
    rest = text[fault.pos :].strip()
    return bool(_NUMBER_CUT.fullmatch(rest)) or any(word.startswith(rest) for word in _WORDS)


def _fault(text: str) -> json.JSONDecodeError | None:
    try:
        _JSON.decode(text)
    except json.JSONDecodeError as fault:
        return fault
    except RecursionError:
        return json.JSONDecodeError("too deep", text, 0)
    return None
