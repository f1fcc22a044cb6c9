"""Training data in the public forms, wherever a host gives examples or preferences."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from modelyard.part import Part

if TYPE_CHECKING:
    from modelyard.formats.training_data import RowFormat


def _row_formats() -> "Callable[[RowFormat[Any]], RowFormat[Any]]":
    from modelyard.parts.readers.files import reading_any_form

    return reading_any_form


PART = Part("readers", row_formats=_row_formats)
