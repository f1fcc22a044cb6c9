"""Reports as files."""

import os
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import get_args

from modelyard.errors import InvalidInput
from modelyard.report.export import Format


def save_report(
    path: str | os.PathLike[str], page: Callable[[], str], export: Callable[[Format], Iterator[bytes]]
) -> None:
    """Write a report to a file of the kind that its ending says: .html, .jsonl or .csv. Raises `InvalidInput`."""
    ending = PurePath(path).suffix.removeprefix(".")
    formats: tuple[Format, ...] = get_args(Format)
    chosen = next((known for known in formats if known == ending), None)
    if chosen is None and ending != "html":
        raise InvalidInput.at("path", msg="must end in .html, .jsonl or .csv")
    lines = iter([page().encode()]) if chosen is None else export(chosen)
    with open(path, "wb") as file:
        file.writelines(lines)
