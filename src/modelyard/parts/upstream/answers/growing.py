"""Text that a server says again: with each piece all that came before it, or as the whole message so far."""

from modelyard.parts.upstream.answers.values import Halves, size_of

_CERTAIN = 4
"""So many pieces, each of which begins with the one before, repeat it; of a text that has ended, one less."""

_NO_CHANCE = 12
"""A last piece of so many bytes, as many as were said, that begins as the text does, is the text again."""


class GrowingText:
    """Takes the pieces of a text, and returns what each of them adds.

    Whether pieces repeat what came before them shows after some of them, which wait; of most texts the second piece
    tells that they do not. A text that stutters, such as an indent, looks alike: few pieces, or few
    letters, tell nothing.

    >>> pieces = GrowingText()
    >>> [pieces.take(piece) for piece in ("I", "I am", "I am he", "I am here")], pieces.take("I am here!")
    (['I', '', '', ' am here'], '!')
    """

    def __init__(self) -> None:
        self.is_plain: bool = False
        """Whether the next pieces are what they add."""
        self.first: str = ""
        """The first piece, unless it was plain."""
        self._repeats = False
        self.waiting: str = ""
        """What was not passed on yet, if pieces do not repeat what came before them."""
        self._last = ""
        self._number = 0

    def take(self, piece: str) -> str:
        if self.is_plain or not piece:
            return piece
        last, grows = self._last, piece.startswith(self._last)
        if self._repeats:
            self._last = piece if grows else last + piece
            return self._last[len(last) :]
        self._last = piece
        if not self._number:
            self.first, self._number = piece, 1
            return piece
        self.waiting += piece
        if not grows or (piece == last and self._number == 1):
            return self._decide(False)
        self._number += piece != last
        return self._decide(len({*piece}) > 2) if self._number == _CERTAIN else ""

    def end(self) -> str:
        """Return what still waits, as the text has ended."""
        return self._decide(self._number == _CERTAIN - 1 and len({*self._last}) > 2) if self.waiting else ""

    def _decide(self, repeats: bool) -> str:
        self._repeats, self.is_plain = repeats, not repeats
        adds = self._last[len(self.first) :] if repeats else self.waiting
        self.waiting = ""
        return adds

    def forget(self) -> None:
        """Forget what waits, as it has come otherwise."""
        self.waiting = ""


class SaidText:
    """The text of a choice, or its reasoning, as far as it has come: in pieces, in whole messages, or in both.

    `size` is how many bytes were passed on. Text of which each piece has details of its own `is_plain`.
    """

    def __init__(self, is_plain: bool) -> None:
        self.size: int = 0
        self._pieces, self._halves = GrowingText(), Halves()
        self._pieces.is_plain = is_plain
        self._of_messages = ""

    @property
    def is_plain(self) -> bool:
        """Whether the next piece may be passed on as it comes."""
        return self._pieces.is_plain and not self._halves.held

    def take(self, piece: str, is_last: bool = False) -> str:
        """Return what is certain with the next piece. The last one may be the whole text again."""
        first = self._pieces.first
        may_be_again = is_last and first and piece.startswith(first) and len(piece) > len(first)
        if may_be_again and _NO_CHANCE <= size_of(piece) == self.size + size_of(self._pieces.waiting):
            return self.pause()
        return self._passed(self._pieces.take(piece))

    def take_message(self, text: str) -> str:
        """Return what the text of a message adds. It has all of its text, unless no message has what came before: then
        a server calls its pieces messages.
        """
        if not text:
            return ""
        passed = self._passed(self._new_in(text))
        self._of_messages += passed
        return passed

    def _new_in(self, text: str) -> str:
        all_of_messages, said, halves = self.size == size_of(self._of_messages), self._of_messages, Halves()
        whole = halves.take(text) + halves.held
        if all_of_messages and not whole.startswith(said):
            return "" if said.strip().startswith(whole.strip()) else text
        self._pieces.forget()
        self._halves.held = ""
        if all_of_messages:
            return whole[len(said) :]
        return text.encode("utf-8", "surrogatepass")[self.size :].decode("utf-8", "replace")

    def pause(self) -> str:
        """Return what waits for more of its kind, as another kind has begun."""
        return self._passed(self._pieces.end())

    def end(self) -> str:
        return self.pause() + self._halves.end()

    def _passed(self, text: str) -> str:
        passed = self._halves.take(text)
        self.size += size_of(passed)
        return passed
