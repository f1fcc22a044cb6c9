r"""Simple regular expressions as a syntax tree: match a string, and make a short string that matches. A client's
pattern is never compiled: matching here tracks sets of positions, so it takes polynomial time, within a budget.
Supported are literals, classes, `. ^ $ | ( ) (?: )`, named groups, look-arounds, the quantifiers, the escapes `\d`,
`\w`, `\s` and their opposites, and `\b`; everything else raises `PatternError`."""

import re
from collections.abc import Callable

import attrs

Spend = Callable[[int], None]
"""Called before work with its number of steps; raises to stop it."""

MAX_TEXT = 4096
MAX_NESTING = 20
MAX_PATTERN = 1000


class PatternError(ValueError):
    """The pattern is not supported; the message names the construct and where it is."""


@attrs.frozen
class CharacterSet:
    """One character inside these inclusive ranges or, if negated, outside them."""

    ranges: tuple[tuple[str, str], ...]
    negated: bool = False

    def __contains__(self, character: str) -> bool:
        return any(low <= character <= high for low, high in self.ranges) != self.negated

    def size(self, more: int) -> int:
        return 1

    def text(self, more: int) -> str:
        plain = "a0A _-." + "".join(map(chr, range(32, 127))) + "".join(low for low, _ in self.ranges)
        for character in plain:
            if character in self:
                return character
        raise PatternError("has a class for which no matching character was found")

    def ends(self, text: str, starts: frozenset[int], spend: Spend) -> frozenset[int]:
        spend(len(starts))
        return frozenset(at + 1 for at in starts if at < len(text) and text[at] in self)


@attrs.frozen
class Anchor:
    at_end: bool

    def size(self, more: int) -> int:
        return 0

    def text(self, more: int) -> str:
        return ""

    def ends(self, text: str, starts: frozenset[int], spend: Spend) -> frozenset[int]:
        return starts & {len(text) if self.at_end else 0}


@attrs.frozen
class Boundary:
    def size(self, more: int) -> int:
        return 0

    def text(self, more: int) -> str:
        return ""

    def ends(self, text: str, starts: frozenset[int], spend: Spend) -> frozenset[int]:
        spend(len(starts))
        word = CharacterSet(_WORD)
        return frozenset(at for at in starts if (text[at - 1 : at] in word) is not (text[at : at + 1] in word))


@attrs.frozen
class LookAround:
    """What must, or must not, follow or, if it looks behind, come before."""

    part: "Node"
    behind: bool
    negated: bool

    def size(self, more: int) -> int:
        return 0

    def text(self, more: int) -> str:
        return ""

    def ends(self, text: str, starts: frozenset[int], spend: Spend) -> frozenset[int]:
        if self.behind:
            found = starts & self.part.ends(text, frozenset(range(len(text) + 1)), spend)
        else:
            found = frozenset(at for at in starts if self.part.ends(text, frozenset((at,)), spend))
        return starts - found if self.negated else found


@attrs.frozen
class Concatenation:
    parts: "tuple[Node, ...]"

    def size(self, more: int) -> int:
        return sum(part.size(more) for part in self.parts)

    def text(self, more: int) -> str:
        return "".join(part.text(more) for part in self.parts)

    def ends(self, text: str, starts: frozenset[int], spend: Spend) -> frozenset[int]:
        for part in self.parts:
            starts = part.ends(text, starts, spend)
        return starts


@attrs.frozen
class Alternation:
    branches: "tuple[Node, ...]"

    def size(self, more: int) -> int:
        return self.branches[0].size(more)

    def text(self, more: int) -> str:
        return self.branches[0].text(more)

    def ends(self, text: str, starts: frozenset[int], spend: Spend) -> frozenset[int]:
        ends = (branch.ends(text, starts, spend) for branch in self.branches)
        return frozenset(place for places in ends for place in places)


@attrs.frozen
class Repetition:
    part: "Node"
    least: int
    most: int | None

    def times(self, more: int) -> int:
        """Return how often `text` repeats the part when it is to have `more` extra rounds."""
        return self.least + more if self.most is None else min(self.most, self.least + more)

    def size(self, more: int) -> int:
        return self.times(more) * self.part.size(more)

    def text(self, more: int) -> str:
        return self.part.text(more) * self.times(more)

    def ends(self, text: str, starts: frozenset[int], spend: Spend) -> frozenset[int]:
        """Return the positions after every allowed number of rounds. Stops when a round reaches nothing new."""
        reached, found, rounds = starts, frozenset[int](), 0
        while reached and (self.most is None or rounds <= self.most):
            if rounds >= self.least:
                if reached <= found:
                    break
                found |= reached
            spend(1)
            following = self.part.ends(text, reached, spend)
            if following == reached:
                return found | reached
            reached, rounds = following, rounds + 1
        return found


Node = CharacterSet | Anchor | Boundary | LookAround | Concatenation | Alternation | Repetition


def matches(node: Node, text: str, spend: Spend) -> bool:
    return bool(node.ends(text, frozenset(range(len(text) + 1)), spend))


def example(node: Node, least: int, spend: Spend) -> str:
    """Make a string of at least `least` characters that the pattern matches. Raises `PatternError` if none is found."""
    more = 0
    while more < least and node.size(more) < least:
        more += 1
        spend(1)
    if max(node.size(more), least) > MAX_TEXT:
        raise PatternError(f"needs more than {MAX_TEXT} characters")
    text = node.text(more)
    for candidate in (text, text.ljust(least, "a"), text.rjust(least, "a")):
        if len(candidate) >= least and matches(node, candidate, spend):
            return candidate
    raise PatternError("matches none of the strings that were tried")


# ---- parsing ---------------------------------------------------------------------------------------------------

_DIGITS = (("0", "9"),)
_WORD = (("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z"))
_SPACE = ((" ", " "), ("\t", "\r"))
_CLASSES = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}
_BRACES = re.compile(r"\{([0-9]+)(?:(,)([0-9]+)?)?\}")
_CODE = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})")
_GROUP = re.compile(r"\((?:\?(?:(<?[=!])|:|P?<[A-Za-z_]\w*>)|(?!\?))")
_QUANTIFIERS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def parse(pattern: str) -> Node:
    if len(pattern) > MAX_PATTERN:
        raise PatternError(f"is longer than {MAX_PATTERN} characters")
    reader = _Reader(pattern)
    node = reader.alternation()
    if reader.at < len(pattern):
        raise reader.unknown("an unopened )")
    return node


class _Reader:
    def __init__(self, pattern: str) -> None:
        self.pattern, self.at, self.nesting = pattern, 0, 0

    def unknown(self, what: str) -> PatternError:
        return PatternError(f"has {what} at character {self.at}")

    def next(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def take(self, text: str) -> bool:
        found = self.pattern.startswith(text, self.at)
        self.at += len(text) * found
        return found

    def alternation(self) -> Node:
        branches = [self.concatenation()]
        while self.take("|"):
            branches.append(self.concatenation())
        return branches[0] if len(branches) == 1 else Alternation(tuple(branches))

    def concatenation(self) -> Node:
        parts: list[Node] = []
        while self.next() not in ("", "|", ")"):
            parts.append(self.quantified(self.atom()))
        return Concatenation(tuple(parts))

    def quantified(self, node: Node) -> Node:
        bounds = self.bounds()
        if bounds is None:
            return node
        if isinstance(node, Anchor | Boundary | LookAround):
            raise self.unknown("a repeated anchor")
        self.take("?")  # a lazy quantifier matches the same texts
        least, most = bounds
        if self.bounds() or (most is not None and most < least):
            raise self.unknown("an invalid quantifier")
        return Repetition(node, least, most)

    def bounds(self) -> tuple[int, int | None] | None:
        if self.next() in _QUANTIFIERS:
            self.at += 1
            return _QUANTIFIERS[self.pattern[self.at - 1]]
        found = _BRACES.match(self.pattern, self.at)
        if found is None:
            return None
        self.at = found.end()
        least = int(found[1])
        return least, int(found[3]) if found[3] else None if found[2] else least

    def atom(self) -> Node:
        character = self.next()
        if character == "(":
            return self.group()
        self.at += 1
        match character:
            case "^" | "$":
                return Anchor(character == "$")
            case ".":
                return CharacterSet((("\n", "\n"),), negated=True)
            case "[":
                return self.character_class()
            case "\\":
                return self.escape()
            case "*" | "+" | "?" | "{":
                raise self.unknown("a quantifier with nothing before it")
        return CharacterSet(((character, character),))

    def group(self) -> Node:
        opening = _GROUP.match(self.pattern, self.at)
        if opening is None:
            raise self.unknown("an extension (?")
        self.at, look = opening.end(), opening[1]
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            raise self.unknown("too many nested groups")
        node = self.alternation()
        self.nesting -= 1
        if not self.take(")"):
            raise self.unknown("an unclosed group")
        return LookAround(node, "<" in look, "!" in look) if look else node

    def escape(self) -> Node:
        if self.take("b"):
            return Boundary()
        character = self.next()
        if character.lower() in _CLASSES:
            self.at += 1
            return CharacterSet(_CLASSES[character.lower()], negated=character.isupper())
        literal = self.escaped_literal()
        return CharacterSet(((literal, literal),))

    def escaped_literal(self) -> str:
        code = _CODE.match(self.pattern, self.at)
        if code is not None:
            self.at = code.end()
            return chr(int(code[1] or code[2], 16))
        character = self.next()
        if character == "" or (character.isalnum() and character not in _CONTROLS):
            raise self.unknown(f"the escape \\{character}")
        self.at += 1
        return _CONTROLS.get(character, character)

    def character_class(self) -> CharacterSet:
        negated, ranges = self.take("^"), list[tuple[str, str]]()
        if self.next() == "]":
            raise self.unknown("an empty class")
        while not self.take("]"):
            ranges += self.member()
        return CharacterSet(tuple(ranges), negated)

    def member(self) -> tuple[tuple[str, str], ...]:
        if self.next() == "\\" and self.pattern[self.at + 1 : self.at + 2] in _CLASSES:
            self.at += 2
            return _CLASSES[self.pattern[self.at - 1]]
        low = high = self.class_character()
        if self.next() == "-" and self.pattern[self.at + 1 : self.at + 2] != "]":
            self.at += 1
            high = self.class_character()
        if high < low:
            raise self.unknown("a range that runs backwards")
        return ((low, high),)

    def class_character(self) -> str:
        character = self.next()
        if character in ("", "["):
            raise self.unknown("an unclosed or nested class")
        self.at += 1
        return self.escaped_literal() if character == "\\" else character
