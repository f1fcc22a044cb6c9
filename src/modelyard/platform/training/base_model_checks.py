"""Check that a base model can read what rows hold, as a chat with it does: what it cannot read is refused."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

import attrs

from modelyard.domain.catalogue import CatalogueEntry
from modelyard.domain.completion import Message
from modelyard.domain.training import Example, Preference
from modelyard.errors import InvalidInput, Problem
from modelyard.platform.catalogue.service import offered
from modelyard.platform.chat.capability_checks import modality_of
from modelyard.platform.runtime import Runtime

Row = TypeVar("Row", bound=Example | Preference)
Place = tuple[str | int, ...]

_PARTS = ("image_url", "input_audio", "video_url", "file")


@attrs.frozen
class BaseModelCheck:
    """What a base model reads: the modalities of its entry, and tools if it takes them."""

    entry: CatalogueEntry
    tools: bool

    @classmethod
    def of(cls, runtime: Runtime, base_model: str) -> "BaseModelCheck | None":
        """Return the check of a base model; None for one that is not served here, so that only its trainer knows."""
        entry = offered(runtime).get(base_model)
        return None if entry is None else cls(entry, runtime.backend.capabilities(base_model).tools)

    @property
    def marks(self) -> Sequence[bytes]:
        """One of these is in every line that may be refused."""
        names = [name for name in _PARTS if self._refuses(name)] + ([] if self.tools else ["tools", "tool_calls"])
        return [b'"%b"' % name.encode() for name in names]

    def __call__(self, row: Row) -> Row:
        """Return the row. Raises `InvalidInput`."""
        problems = [problem for place, message in _messages(row) for problem in self._problems(place, message)]
        if row.tools and not self.tools:
            problems.append(Problem(("tools",), f"{self.entry.id} takes no tools; leave them out"))
        if problems:
            raise InvalidInput(problems)
        return row

    def _problems(self, place: Place, message: Message) -> Iterator[Problem]:
        for number, part in enumerate(message.content if isinstance(message.content, tuple) else ()):
            if part.type != "text" and self._refuses(part.type):
                yield Problem((*place, "content", number), f"{self.entry.id} does not take {part.type}")
        if message.tool_calls and not self.tools:
            yield Problem((*place, "tool_calls"), f"{self.entry.id} calls no tools; leave out the row")

    def _refuses(self, part: str) -> bool:
        return modality_of(part) not in self.entry.input_modalities


def _messages(row: Example | Preference) -> Iterator[tuple[Place, Message]]:
    for number, message in enumerate(row.messages):
        yield ("messages", number), message
    if isinstance(row, Preference):
        yield ("chosen",), row.chosen
        yield ("rejected",), row.rejected
