"""The parameters of a query, read strictly, with every problem reported at once."""

import re
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qs

from modelyard.errors import InvalidInput, Problem

MAX_VALUES = 1000

MAX_WHOLE = 10**15 - 1

_MAX_FIELDS = 1000
_WHOLE = re.compile(r"-?[0-9]{1,15}")


def parse_query(text: str) -> Mapping[str, tuple[str, ...]]:
    try:
        text.encode("ascii")
        fields = parse_qs(text, keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS)
        return {name: tuple(values) for name, values in fields.items()}
    except ValueError:
        raise InvalidInput.at("query", msg=f"must be percent-encoded UTF-8 with at most {_MAX_FIELDS} fields") from None


class Query:
    """Reads parameters one by one; `check` raises the problems of all of them."""

    def __init__(self, parameters: Mapping[str, Sequence[str]]) -> None:
        self._parameters = parameters
        self._problems: list[Problem] = []

    def texts(self, *names: str, required: bool = False) -> tuple[str, ...]:
        """Read an array parameter under any of its names: its values, each once. The parameter is repeated; older
        clients join values with commas."""
        given = [text for name in names for value in self._parameters.get(name, ()) for text in value.split(",")]
        values = tuple(dict.fromkeys(filter(None, given)))
        if len(values) > MAX_VALUES:
            self._refuse(names[0], f"must be at most {MAX_VALUES} values", "too_long")
        if required and not values:
            self._refuse(names[0], "is required", "missing")
        return values

    def text(self, name: str) -> str | None:
        values = self._parameters.get(name, ())
        if len(values) > 1:
            self._refuse(name, "must be given once", "value_error")
        return values[0] or None if values else None

    def whole(self, name: str) -> int | None:
        values = self._parameters.get(name, ())
        if not values:
            return None
        if len(values) > 1 or not _WHOLE.fullmatch(values[0]):
            self._refuse(name, "must be one whole number of at most 15 digits", "int_parsing")
            return None
        number = int(values[0])
        if number < 0:
            self._refuse(name, "must be at least 0", "greater_than_equal")
        return number

    def check(self) -> None:
        if self._problems:
            raise InvalidInput(self._problems)

    def _refuse(self, name: str, msg: str, type_: str) -> None:
        self._problems.append(Problem(("query", name), msg, type_))
