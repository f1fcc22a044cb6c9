"""The text of a conversation as a chat template writes it, and the parts of it that the template marks as answers."""

from collections.abc import Sequence

import attrs

Span = tuple[int, int]


@attrs.frozen
class Rendered:
    """Text in which names of special tokens in messages are escaped; `marks` are the spans of `{% generation %}`."""

    text: str
    marks: Sequence[Span] = ()
    marked: bool = False
    """Whether the template marks answers in this conversation: then only what lies in `marks` was generated."""

    def before_marks(self) -> "Rendered | None":
        return Rendered(self.text[: self.marks[0][0]]) if self.marks else None

    def after(self, start: int) -> "Rendered":
        return Rendered(self.text[start:], self._moved(-start), self.marked)

    def behind(self, text: str) -> "Rendered":
        """Return the same behind a generated text."""
        return Rendered(text + self.text, [(0, len(text)), *self._moved(len(text))], self.marked)

    def generated(self, spans: Sequence[Span]) -> list[bool]:
        """Return which of the tokens with these spans were generated. A token of white space alone may have an empty
        span at its end.
        """
        if not self.marked:
            return [True] * len(spans)
        return [
            any(first < stop and (last > start if first < last else start < last <= stop) for start, stop in self.marks)
            for first, last in spans
        ]

    def _moved(self, by: int) -> list[Span]:
        return [(max(start + by, 0), stop + by) for start, stop in self.marks if stop + by > 0]
