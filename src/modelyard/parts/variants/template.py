"""Texts with named inputs. `{question}` stands for an input, and `{{` and `}}` for braces. Nothing else is read."""

import re
from collections.abc import Mapping
from functools import lru_cache

from modelyard.errors import InvalidInput

MAX_INPUTS = 32
MAX_RENDERED = 2_000_000
"""How many characters a text may have with its inputs."""

INPUT_PATTERN = r"[A-Za-z_][A-Za-z0-9_]{0,63}"
_TOKEN = re.compile(rf"\{{\{{|\}}\}}|\{{(?P<name>{INPUT_PATTERN})\}}|(?P<brace>[{{}}])")
_SHOWN = 20


class Template:
    """A text in pieces: those with an even number are literal, each other one is the name of an input."""

    def __init__(self, text: str, at: str = "template") -> None:
        pieces, literal, end = list[str](), list[str](), 0
        for found in _TOKEN.finditer(text):
            if found["brace"]:
                raise InvalidInput.at(at, msg=_refusal(text, found.start()))
            literal.append(text[end : found.start()])
            end = found.end()
            if found["name"] is None:
                literal.append(found[0][0])
            else:
                pieces += ["".join(literal), found["name"]]
                literal = []
        self._pieces = (*pieces, "".join(literal) + text[end:])
        self.inputs = tuple(dict.fromkeys(self._pieces[1::2]))
        if len(self.inputs) > MAX_INPUTS:
            raise InvalidInput.at(at, msg=f"has {len(self.inputs)} inputs, and may have {MAX_INPUTS}")
        if not self.inputs:
            raise InvalidInput.at(at, msg="has no input, so that it would lose what is asked: write {question} for it")

    def fill(self, values: Mapping[str, str], *at: str | int) -> str:
        """Return the text with these inputs, which are not read again. Raises `InvalidInput` if it is too long."""
        filled = [values[piece] if place % 2 else piece for place, piece in enumerate(self._pieces)]
        length = sum(map(len, filled))
        if length > MAX_RENDERED:
            raise InvalidInput.at(*at, msg=f"would make {length} characters of the template, of at most {MAX_RENDERED}")
        return "".join(filled)


@lru_cache(maxsize=256)
def template_of(text: str) -> Template:
    return Template(text)


def _refusal(text: str, at: int) -> str:
    line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
    near = text[at : at + _SHOWN].partition("\n")[0]
    return (
        f"has at line {line}, column {column} a brace that begins no input: {near!r}. "
        "Write {name} for an input, a letter or _ and then letters, digits and _; and {{ or }} for a brace"
    )
