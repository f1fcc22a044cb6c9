"""The function from a row to its record, written out once for each class of records."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from modelyard.domain.frozen_fast import maker
from modelyard.stores.columns import Column
from modelyard.stores.conversions_fast import Convert

Row = tuple[Any, ...]

UNREADABLE = (ValueError, KeyError, TypeError, ArithmeticError)
"""The errors that converting a damaged value may raise."""


def record_function(
    cls: type,
    columns: Sequence[Column],
    damaged: Callable[[Exception], Exception],
    load_of: Callable[[Column], Convert | None] = lambda column: column.kind.load,
    needless: Mapping[Convert, str] | None = None,
) -> Callable[[Row], Any]:
    """Return the function that makes a record of `cls` from the values of its columns, which `load_of` converts.

    `needless` has conditions on a value `{}` under which a conversion would return it unchanged. The function raises
    what `damaged` makes of the error where a value cannot be converted.
    """
    variables = [f"v_{column.name}" for column in columns]  # a field may have the name of a builtin
    loads = [load_of(column) for column in columns]
    loaded = [_loaded(*one, needless or {}) for one in zip(columns, loads, strict=True)]
    lines = [
        "def record_of(row):",
        f" {', '.join(variables)}, = row",
        " try:",
        f"  return cls({', '.join(loaded)})",
        " except unreadable as error:",
        "  raise damaged(error) from error",
    ]
    known = {"cls": maker(cls), "damaged": damaged, "unreadable": UNREADABLE}
    known |= {f"load_{column.name}": load for column, load in zip(columns, loads, strict=True)}
    exec("\n".join(lines), known)  # noqa: S102 - of the names of fields, as attrs makes its functions
    function: Any = known["record_of"]
    return function  # type: ignore[no-any-return]


def _loaded(column: Column, load: Convert | None, needless: Mapping[Convert, str]) -> str:
    variable = f"v_{column.name}"
    if load is None:
        return variable
    unchanged = [f"{variable} is None"] if column.nullable else []
    if load in needless:
        unchanged.append(needless[load].format(variable))
    loaded = f"load_{column.name}({variable})"
    return f"{variable} if {' or '.join(unchanged)} else {loaded}" if unchanged else loaded
