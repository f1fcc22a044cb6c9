"""The function from a row to its record, written out once for each class of records."""

from collections.abc import Callable, Sequence
from typing import Any

from modelyard.stores.columns import Column

Row = tuple[Any, ...]

UNREADABLE = (ValueError, KeyError, TypeError, ArithmeticError)
"""The errors that converting a damaged value may raise."""


def record_function(
    cls: type, columns: Sequence[Column], damaged: Callable[[Exception], Exception]
) -> Callable[[Row], Any]:
    """Return the function that makes a record of `cls` from the values of its columns.

    It raises what `damaged` makes of the error where a value cannot be converted.
    """
    variables = [f"v_{column.name}" for column in columns]  # a field may have the name of a builtin
    lines = [
        "def record_of(row):",
        f" {', '.join(variables)}, = row",
        " try:",
        f"  return cls({', '.join(map(_loaded, columns))})",
        " except unreadable as error:",
        "  raise damaged(error) from error",
    ]
    known = {"cls": cls, "damaged": damaged, "unreadable": UNREADABLE}
    known |= {f"load_{column.name}": column.kind.load for column in columns}
    exec("\n".join(lines), known)  # noqa: S102 - of the names of fields, as attrs makes its functions
    function: Any = known["record_of"]
    return function  # type: ignore[no-any-return]


def _loaded(column: Column) -> str:
    variable = f"v_{column.name}"
    if column.kind.load is None:
        return variable
    loaded = f"load_{column.name}({variable})"
    return f"None if {variable} is None else {loaded}" if column.nullable else loaded
