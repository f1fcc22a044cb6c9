"""Markdown for a comment on a pull request. Text of models and rows is shown as code, which no renderer interprets."""

import re
from collections.abc import Collection, Iterable, Sequence

LONGEST = 300
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~@&!])")


def plain(text: object) -> str:
    r"""Return text on one line that Markdown shows as it is.

    >>> plain("a|b *c*")
    'a\\|b \\*c\\*'
    """
    return _SPECIAL.sub(r"\\\1", " ".join(str(text).split()))


def code(text: object) -> str:
    """Return text on one line as code, also within a table; a long one is cut.

    >>> code("a`b|c"), code("")
    ('``a`b\\\\|c``', '')
    """
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in str(text)).split())
    shown = line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"
    if not shown:
        return ""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    space = " " if "`" in (shown[0], shown[-1]) else ""
    escaped = shown.replace("|", "\\|")
    return f"{fence}{space}{escaped}{space}{fence}"


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[str] = ()) -> str:
    rule = ["--:" if name in right else "---" for name in headers]
    return "\n".join(f"| {' | '.join(line)} |" for line in (headers, rule, *rows))


def folded(title: str, content: str) -> str:
    return f"<details><summary>{plain(title)}</summary>\n\n{content}\n\n</details>"


def joined(parts: Iterable[str]) -> str:
    return "\n\n".join(filter(None, parts)) + "\n"
