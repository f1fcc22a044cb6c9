"""Tables of text, for terminals."""

from collections.abc import Collection, Sequence

_CONTROL = dict.fromkeys((*range(32), *range(127, 160)), "?")


def printable(value: object) -> str:
    """Return the value as text without control characters, which could control a terminal."""
    return str(value).translate(_CONTROL)


def text_table(headers: Sequence[str], rows: Sequence[Sequence[object]], right: Collection[str] = ()) -> str:
    cells = [list(headers), *([printable(value) for value in row] for row in rows)]
    widths = [max(len(line[at]) for line in cells) for at in range(len(headers))]
    to_the_right = [
        name in right or (bool(rows) and all(isinstance(row[at], int | float) for row in rows))
        for at, name in enumerate(headers)
    ]
    lines = [
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, to_the_right, strict=True)
        )
        for line in cells
    ]
    rule = "  ".join("-" * width for width in widths)
    return "\n".join(line.rstrip() for line in (lines[0], rule, *lines[1:]))


def means(values: Sequence[float], buckets: int) -> list[float]:
    """Return the means of about `buckets` equal stretches, to make a long series short enough to draw."""
    size = max(1, -(-len(values) // buckets))
    stretches = [values[at : at + size] for at in range(0, len(values), size)]
    return [sum(stretch) / len(stretch) for stretch in stretches]
