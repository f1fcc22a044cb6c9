"""Which choice of a request a piece of an answer belongs to: by its number, or by what servers send instead."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from modelyard.domain.completion import FinishReason
from modelyard.parts.upstream.answers.reasons import reason_in
from modelyard.parts.upstream.answers.values import delta_of, index_of, object_of, string_of


class ChoiceSoFar(Protocol):
    """What is known of a choice."""

    reason: FinishReason | None

    @property
    def has_output(self) -> bool: ...


Choice = Mapping[str, Any]
_ALIKE = "numbers all its choices alike; they are told apart by their places, their ids or their order"


def _is_whole(choice: Choice) -> bool:
    return "message" in choice or ("delta" not in choice and reason_in(choice) is not None)


class ChoiceNumbers:
    """Numbers the choices of an answer. Of one choice any number is right.

    Some servers number several choices all 0. Those of one chunk are told apart by their places. In a stream, a chunk
    with an id of its own that names a role begins a choice, and so does output after the end of the choice before.
    """

    def __init__(self, choices: Sequence[ChoiceSoFar], note: Callable[[str], None]) -> None:
        self._choices, self._note = choices, note
        self._only: int | None = None
        self._ids: dict[str, int] = {}
        self._last = 0
        self._from_one = False
        self.are_certain: bool = len(choices) == 1
        """Whether the numbers that come are right, as they differ."""

    def numbered(self, found: Sequence[Choice], chunk: Mapping[str, Any]) -> list[tuple[int, Choice]]:
        """Return the choices of a chunk with their numbers."""
        given = [(at if (index := index_of(one.get("index"))) is None else index, one) for at, one in enumerate(found)]
        if 1 < len(given) >= len(self._choices) and all(map(_is_whole, found)):
            return self._of_all(given)
        if len(self._choices) == 1:
            return [(self._of_one(index), one) for index, one in given]
        self.are_certain = self.are_certain or len({index for index, _ in given} - {0}) > 0
        if 1 < len(given) == len(self._choices) > len({index for index, _ in given}):
            self._note(_ALIKE)
            return list(enumerate(found))
        if self.are_certain or len(given) != 1:
            return [(self._from_zero(index), one) for index, one in given]
        return [(self._of_stream(found[0], string_of(chunk.get("id"))), found[0])]

    def _of_all(self, given: Sequence[tuple[int, Choice]]) -> list[tuple[int, Choice]]:
        """Return the whole choices of an answer, perhaps more than were requested, in the order of their numbers."""
        if len({index for index, _ in given}) < len(given):
            self._note(_ALIKE)
            return [(at, one) for at, (_, one) in enumerate(given)]
        return [(at, one) for at, (_, one) in enumerate(sorted(given, key=lambda numbered: numbered[0]))]

    def _from_zero(self, number: int) -> int:
        """Return the place of a number. The last choice of a server that counts from 1 has the place that is free."""
        if number != len(self._choices):
            return number
        first = self._choices[0]
        self._from_one = self._from_one or not (first.reason or first.has_output)
        return 0 if self._from_one else number

    def _of_one(self, index: int) -> int:
        if self._only is None or index == 0:
            self._only = 0 if self._choices[0].has_output else index
        return 0 if index == self._only else index + 1

    def _of_stream(self, choice: Choice, id_: str) -> int:
        """Return the number of the only choice of a chunk, in a stream that has numbered none otherwise than 0."""
        delta = delta_of(choice.get("delta"))
        number = self._ids.get(id_, self._last)
        is_other = bool(id_) and bool(self._ids) and id_ not in self._ids
        has_role = bool(delta.get("role") or object_of(choice.get("message")).get("role"))
        says = any(value for name, value in delta.items() if name != "role")
        if (is_other and has_role) or (self._choices[number].reason and says):
            number = self._next(number)
        if id_:
            self._ids[id_] = number
        self._last = number
        return number

    def _next(self, number: int) -> int:
        """Return the first choice that has not begun; the same again if all have."""
        begun = {*self._ids.values(), number}
        free = (at for at, one in enumerate(self._choices) if at not in begun and not (one.reason or one.has_output))
        found = next(free, number)
        if found != number:
            self._note(_ALIKE)
        return found
