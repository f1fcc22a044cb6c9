"""Reasoning in the text of models: what they write between `<think>` and `</think>`, before they answer.

Qwen3, DeepSeek R1 and others write these marks. Some chat templates end with the first one, and the answer then begins
with the reasoning itself.
"""

from enum import Enum

OPENING, CLOSING = "<think>", "</think>"


class _At(Enum):
    START = 0
    REASONING = 1
    CLOSED = 2
    CONTENT = 3


class ReasoningReader:
    """Splits an answer, read piece by piece, into reasoning and content.

    `opened` means that the prompt ended with the opening mark. Line breaks next to a mark belong to neither part, as
    templates write their own. An answer that ends before the closing mark is reasoning as a whole, and one that does
    not begin with the opening mark is content as a whole.
    """

    def __init__(self, opened: bool) -> None:
        self._at = _At.REASONING if opened else _At.START
        self._text = self._held = ""
        self._begun = False

    @property
    def ended(self) -> bool:
        """Whether everything that follows is content."""
        return self._at is _At.CONTENT

    def take(self, text: str, last: bool) -> tuple[str, str]:
        """Take the next piece, and return the reasoning and the content that are certain now.

        The last character of the reasoning is held back until the content begins or the answer ends; `last` says that
        this piece ends it.
        """
        self._text += text
        reasoning = ""
        if self._at is _At.START:
            self._open(last)
        if self._at is _At.REASONING:
            reasoning = self._reasoning(last)
        if self._at is _At.CLOSED:
            self._text = self._text.lstrip("\n")
            if self._text or last:
                self._at, reasoning = _At.CONTENT, self._held
        if self._at is not _At.CONTENT:
            return reasoning, ""
        content, self._text = self._text, ""
        return reasoning, content

    def _open(self, last: bool) -> None:
        written = self._text.lstrip()
        if written.startswith(OPENING):
            self._at, self._text = _At.REASONING, written[len(OPENING) :]
        elif last or not OPENING.startswith(written):
            self._at = _At.CONTENT

    def _reasoning(self, last: bool) -> str:
        """Return what is certainly reasoning, and hold back the rest, or the last character before the closing mark."""
        if not self._begun:
            self._text = self._text.lstrip("\n")
            self._begun = bool(self._text)
        before, mark, after = self._text.partition(CLOSING)
        if mark:
            self._at, self._held, self._text = _At.CLOSED, before.rstrip("\n"), after
            return ""
        size = len(before.rstrip("\n")) if last else max(len(before[: -_begun(before) or None].rstrip("\n")) - 1, 0)
        self._text = before[size:]
        return before[:size]


def _begun(text: str) -> int:
    """Return how many characters at the end of the text may be the beginning of the closing mark."""
    sizes = range(min(len(CLOSING) - 1, len(text)), 0, -1)
    return next((size for size in sizes if text.endswith(CLOSING[:size])), 0)
