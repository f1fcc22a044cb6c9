"""What texts state: the numbers and the verdicts in them, as people and models write them.

A minus may be U+2212 or another dash, and stand before a sign of currency. After a digit, a letter or a bracket it
joins two numbers, as in "3-4" and "COVID-19", and is no sign. Digits may be of any script. Commas, apostrophes and
narrow spaces group digits only before three of them: "1,234" is above a thousand, though in some languages the comma
begins a fraction, and "1,5" is two numbers. If points group the digits before a comma, as in "1.234,5", it begins the
fraction.

A judge reasons before it decides, and quotes what it judges. So the verdict after a label counts ("Verdict: no"), else
the last one, as its clause has it ("does not give the correct answer"); a member of that name counts in JSON. No
verdicts are "no" before a noun ("no issues"), alternatives, a reference ("the correct answer is"), and questions.
"""

import json
import math
import re
import unicodedata
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any, TypeVar

# ---- numbers -----------------------------------------------------------------------------------------------------

_MINUS = "-\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d"
_CURRENCY = "$\u00a2\u00a3\u00a4\u00a5\u20a0-\u20c0\ufe69\uff04\uffe1\uffe5"
_GROUP = "[,'\u2019\u00a0\u2009\u202f\uff0c]"
_SIGN = rf"(?<![\w)\]}}%.{_CURRENCY}])[{_MINUS}+]"
NUMBER = re.compile(
    rf"({_SIGN})?(?:[A-Z]{{0,3}}[{_CURRENCY}]\s?([{_MINUS}+])?)?"
    r"(?:(\d{1,3}(?:\.\d{3}){1,20}),(\d{1,400})(?!\d)"
    rf"|(?:\d{{1,3}}(?:{_GROUP}\d{{2,3}}){{0,20}}{_GROUP}\d{{3}}(?!\d)|\d{{1,400}}+)(?:[.\uff0e]\d{{1,400}}+)?"
    rf"|(?<!\d)[.\uff0e]\d{{1,400}}+)(?:[eE][{_MINUS}+]?\d{{1,4}}(?!\w|\.\d))?"
)
_LONE_GROUP, _LONE_MINUS, _FIRST = re.compile(_GROUP), re.compile(f"[{_MINUS}]"), re.compile(r"[\d.]")


def exact(number: float) -> Fraction:
    """Return a number as the decimal that is written for it: 0.1 is a tenth."""
    return Fraction(float.__repr__(number)) if isinstance(number, float) else Fraction(number)


def number_in(value: object) -> Fraction | None:
    """Return a number, or the last one in a string; None for a bool, and without one that is finite."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return exact(value) if math.isfinite(value) else None
    found = deque(NUMBER.finditer(str(value)), maxlen=1)
    return _value(found[0]) if found else None


def _value(found: re.Match[str]) -> Fraction:
    sign, inner, whole, _ = found.groups(default="")
    digits = found[0][len(sign) :]
    if whole:
        digits = digits.replace(".", "").replace(",", ".")
    plain = _LONE_MINUS.sub("-", _LONE_GROUP.sub("", digits)).replace("\uff0e", ".")
    value = Fraction(plain[_FIRST.search(plain).start() :])  # type: ignore[union-attr]  # it has a digit
    return -value if any(one in _MINUS for one in sign + inner) else value


# ---- verdicts ----------------------------------------------------------------------------------------------------

R = TypeVar("R")

LONGEST, _NEAR = 20_000, 300
"""Characters of an answer that are read, the last ones, and of the clause before a verdict."""

_LABEL = r"(?:verdict|judge?ment|decision|conclusion|result|answer|score|rating|grade|evaluation|assessment)"
_NAMES = re.compile(rf"(?:(?:final|overall)[ _]?)?{_LABEL}|label|(?:is_)?correct|pass(?:ed)?|value", re.IGNORECASE)
_GOOD = r"yes|true|pass(?:es|ed)?|correct"
_WORD = rf"(?:{_GOOD}|no|false|fail(?:s|ed)?|incorrect)"
_START, _END = r"(?<![a-zà-ɏ0-9_-])(?<![a-z]['’])", r"(?![a-zà-ɏ0-9_]|['’][a-z])"
_ALTERNATIVES = re.compile(
    rf"{_START}neither\s+{_WORD}\s+nor\s+{_WORD}{_END}|{_START}(?:yes\s+and\s+no|true\s+and\s+false){_END}"
    rf"|{_START}{_WORD}\s*(?:/|\||,?\s+or\s+|\s+nor\s+)\s*[\"']?{_WORD}{_END}"
)
_NOT_A_NOUN = r"(?:it|th(?:is|at|[eo]se|ere|ey|e)|i|we|you|s?he|because|since|as|but|and|so|its|not?|is|was|an?)\b"
_NEGATION = (
    r"(?:not(?!\s+only\b)|never|nothing|none|nobody|no\s+one|hardly|scarcely|cannot|no longer|by no means|in no way"
    rf"|far from|nowhere near|anything but|less than|neither(?!.*\bnor\b)|nor|[a-z]{{1,10}}n['’]t){_END}"
    r"(?!\s+(?:matter|change|affect|alter|doubt|(?:be\s+)?den(?:y|ied)|(?:be\s+)?disputed?)\b)"
)
_NOT = re.compile(
    rf"{_START}(?:{_NEGATION}|(?:fail(?:s|ed)?|unable|refus(?:es|ed)|wrong)\s+to\b|(?:rather|other)\s+than\b|unlike\b"
    r"|(?:differ[a-z]{0,3}|deviates?)\s+from\b|(?:instead|opposite)\s+of\b|contrary\s+to\b|(?:lack|miss|omit|ignor"
    r"|contradict|violat)[a-z]{0,3}\s+(?:(?:the|an?|any|its|one)\s+)?$|no\s+(?:(?:such|single|fully|entirely)\s+)?$)"
)
_CLAUSE = re.compile(
    r"[.!?;:,\n()\u2013\u2014]|\s-\s|\b(?:(?<!anything )but|and|so|yet|because|since|which|hence|thus|therefore)\b"
    r"|\b(?=(?:although|though|while|whereas|even if|despite)\b)"
)
_OPEN = re.compile(
    r"\b(?:whether|although|though|while|whereas|even if|despite|must)\b|^\W*(?:if|to)\b|\b(?:in order|needs?|required"
    r"|ha[sd]|have)\s+to\b|\b(?:check|see|determine|decide|verify|assess|judge|evaluate|know|ask|sure|clear)[a-z]{0,3}"
    r"\s+if\b|\b(?:partial(?:ly)?|partly|half|somewhat|almost|nearly)[\s-]+$"
)
_SUBJECT = re.compile(r"\W*(?:(?:as|when|given|per|like)\s+)?(?:the|an?|any|every|each|its?|one)\s+")
_VERDICT = re.compile(
    rf"{_START}(?:(?P<good>{_GOOD})|no(?!\s+(?!{_NOT_A_NOUN})[a-z0-9]|\.\s?\d|-)|false|fail(?:s|ed)?|incorrect){_END}"
    rf"(?!\s+(?!{_NOT_A_NOUN})[a-z]+\s+(?:is|was|are|were|would|should|being|to\s+be)\b)(?!\s+(?:only\s+)?(?:if|had)\b)"
    rf"(?=(?P<noun>\s+(?!{_NOT_A_NOUN})[a-z])?)"
)
_IS = r"\s*[\"'\]]*\s*(?:</\w{1,9}>\s*)?(?:[:=|>\u2192\]]|->)[\s\"'(\[|<>]*"


def _after(label: str) -> str:
    """Return a pattern of a label up to what it names: a sign, a tag, a cell or a heading; or two brackets."""
    marked = rf"(?<!</){_START}(?:[a-z]{{1,20}}[_ ])?{label}{_IS}"
    return rf"(?:{marked}|^[# \t]*(?:\w{{1,20}}\s)?{label}\s*\n\s*|\[\[\s*)"


_LABELLED = re.compile(rf"{_after(_LABEL)}(?=(?:{_NEGATION}\s+)?{_WORD}{_END})", re.MULTILINE)
_WHOLE = {
    **dict.fromkeys(("да", "是", "对", "正确", "はい", "예", "네", "ja", "oui", "sí", "si", "sim", "نعم", "हाँ"), True),
    **dict.fromkeys(("нет", "否", "不是", "不对", "不正确", "错误", "いいえ", "아니요", "아니오"), False),
    **dict.fromkeys(("nein", "non", "nee", "não", "لا", "नहीं"), False),
}
"""Other languages, where nothing else follows a line break or a colon."""

_LINES = re.IGNORECASE | re.MULTILINE
_REASON = re.compile(r"^[^\w\n]*(?:explanation|reason(?:ing|s)?|rationale|justification)\s*[:\n]", _LINES)

_TO = r"\s*(?:[-\u2010-\u2013\u2212~]|to|and|through|\.\.+)\s*"
_UNIT = "(?:points?|pts?|stars?|marks?|\u2b50|\u2605)"
_OUT_OF = re.compile(
    rf"({NUMBER.pattern})\s*(?:{_UNIT}\s*,?\s*of\b|{_UNIT}?\s*[(\[]?\s*(?:\\?/|out\s+of|sur\b|von\b))\s*"
    r"(?:a\s+(?:possible|maximum)\s+)?\d"
)
_SCORE = r"(?:score|rating|grade|(?<=\[)result(?=\]))"
_RATED = re.compile(rf"{_after(_SCORE)}({NUMBER.pattern})", _LINES)
_NEXT, _BARE = r"\s*[\].:)\u2013\u2014-]\s+[a-z]", rf"(?=[{_MINUS}]?\d[\d.]*"
_GIVEN = re.compile(
    r"(?:\bi(?:['’]d|\s+would|\s+will)?\s+(?:give|rate|score|say|assign|award|grade)\b[^.\n\d]{0,40}?"
    rf"|\b{_SCORE}\s+(?:(?:is|was|would\s+be)\s+|of\s+(?!\S+\s+(?:means|is|would|indicates|requires|if|for)\b))"
    rf"|\b(?:deserves|merits|warrants|earns|gets)\s+(?:an?\s+)?|(?<![\d.,-]){_BARE}[^\w\n]{{1,3}}(?:because|due\s+to)\b)"
    rf"|^[ \t\"'(\[]*{_BARE}[ \t\"')\]]*$)|\A[\s\"'(\[]*{_BARE}(?:,\s+[a-z]|{_NEXT})"
    rf"(?![\s\S]*(?<![\w.])\d[\d.]*{_NEXT})))({NUMBER.pattern})",
    _LINES,
)
_ASIDE, _WORDS = re.compile(r"\([^()]{0,200}\)"), re.compile(r"\([^()\d]{0,200}\)")
_END_OF_SCALE = "(?:best|worst|highest|lowest|top|bottom|perfect|excellent|ideal|poor(?:est)?|m(?:ax|in)imum)"
_SCALE = re.compile(
    rf"[(\[][^()\[\]]{{0,40}}?\d[\d.]{{0,9}}{_TO}\d[^()\[\]]{{0,40}}[)\]]"
    rf"|\b(?:scale|range)\b[^.\n\d]{{0,20}}\d[\d.]{{0,9}}{_TO}\d[\d.]{{0,9}}|\bscale\s+of\s+\d[\d.]{{0,9}}"
    rf"|\d[\d.]{{0,9}}{_TO}\d[\d.]{{0,9}}[\s-]*(?:points?\s+)?(?:scale|range)|\d[\d.]{{0,9}}[\s-]*points?[\s-]+scale"
    r"|\bmax(?:imum)?\b[^.\n\d]{0,15}\d[\d.]{0,9}|\b\d[\d.]{0,9}\s*=\s*[^\W\d]|(?<=\d)\s{0,10}[(\[]?\s{0,10}"
    r"(?:/|(?:out\s+)?of|over)\s{0,10}[\d.]{1,20}|\b(?:where(?:\s+an?)?|up\s+to)\s+\d[\d.]{0,9}"
    rf"|\b\d[\d.]{{0,9}}\s+(?:(?:is|are|being|means?|as|the|an?|possible|considered)\s+){{0,4}}{_END_OF_SCALE}\b"
    rf"|\b{_END_OF_SCALE}(?:\s+(?:possible|score|rating|grade|value|mark)){{0,2}}\s*(?:is|being|=)\s*\d[\d.]{{0,9}}"
)
_RANGE = re.compile(
    r"(?<![\w./-])(?:(between)\s+)?(\d{1,9}(?:\.\d{1,9})?)(?:\s*[-\u2010-\u2013\u2212~]\s*|\s+(?:to|or|(?(1)and|to))\s+)"
    r"(\d{1,9}(?:\.\d{1,9})?)(?!\w|\.\d|\s*[-\u2010-\u2013\u2212]\s*\d)",
    re.IGNORECASE,
)
_COMMAND = re.compile(r"\\(?![dtc]?frac(?![a-zA-Z]))(?:[a-zA-Z]+|[^\w\s])")
_FRACTION = re.compile(
    r"(?:(?P<whole>\d{1,9})\s?)?(?:\\[dtc]?frac\s?(?:\{{1,5}\s?(?P<top>\d{1,9}(?:\.\d{1,9})?)\s?\}{1,5}\s?"
    r"\{{1,5}\s?(?P<under>\d{1,9})\s?\}{1,5}|(?P<t>\d)\s?(?P<u>\d))(?:\s?=\s?[\d.]{1,20})?"
    r"|(?P<one>[\u00bc-\u00be\u2150-\u215e]))"
)


def verdict_in(answer: str) -> bool | None:
    """Return whether a judge said yes; None without a verdict."""
    return _first(_verdict, answer)


def rating_in(answer: str) -> float | None:
    """Return the number that a judge gave: the last one after a label ("Score: 4"), else the last one before "/10" or
    "out of 10", else the last one that is not of a scale, as in "(scale 1-5)". Of a range ("4-5") it is the middle."""
    return _first(_rating, answer)


def label_text(answer: str) -> str:
    """Return the part of an answer in which a label is looked for."""
    return "\n".join(map(str, _deciding(answer)))


def _first(read: Callable[[str], R | None], answer: str) -> R | None:
    """Return what the first deciding part says, before its reasons if they follow."""
    for part in _deciding(answer):
        text = _plain(part if isinstance(part, str) else json.dumps(part))
        reason = _REASON.search(text)
        found = read(text[: reason.start()]) if reason else None
        found = read(text) if found is None else found
        if found is not None:
            return found
    return None


def _verdict(text: str) -> bool | None:
    text = text.lower()
    for label in reversed([*_LABELLED.finditer(text)]):
        found = _VERDICT.search(text, label.end())
        if found and not _NOT.sub("", before := text[label.end() : found.start()]).strip():
            return _said(found, before)
    text = _without_alternatives(text)
    for found in reversed([*_VERDICT.finditer(text)]):
        clause = _CLAUSE.split(text[max(0, found.start() - _NEAR) : found.start()])[-1]
        if (said := _said(found, clause)) is not None:
            return said
    return _WHOLE.get(re.split(r"[:\n]", text.strip(" .!\n\t。"))[-1].strip(" .!\"'。"))


def _said(found: re.Match[str], before: str) -> bool | None:
    if _OPEN.search(before) or (found["noun"] and _SUBJECT.fullmatch(before)):
        return None
    return (len(_NOT.findall(before)) % 2 == 0) is (found["good"] is not None)


def _without_alternatives(text: str) -> str:
    sentences = re.split(r"(?<=[.!?\n])", text)
    return _ALTERNATIVES.sub(" ", "".join(one for one in sentences if not one.rstrip().endswith("?")))


def _rating(text: str) -> float | None:
    text = _typed(text)
    unscaled = _RANGE.sub(_middle, _SCALE.sub(" ", _WORDS.sub(" ", text)))
    rated = [*_RATED.finditer(unscaled)] or [*_OUT_OF.finditer(_RANGE.sub(_middle, text))]
    rated = rated or [*_GIVEN.finditer(unscaled)]
    without_asides = number_in(_ASIDE.sub(" ", unscaled))
    number = number_in(rated[-1][1]) if rated else number_in(unscaled) if without_asides is None else without_asides
    try:
        return None if number is None else float(number)
    except OverflowError:
        return None


def _middle(found: re.Match[str]) -> str:
    least, most = Fraction(found[2]), Fraction(found[3])
    return repr(float((least + most) / 2)) if least < most else found[0]


def _typed(text: str) -> str:
    """Return a text without the commands of TeX. Of a fraction of its own, the numerator is what is rated."""
    text = _COMMAND.sub(lambda found: "over" if found[0] == "\\over" else "", text)
    text = _FRACTION.sub(_fraction, text.replace("\u2044", "/").replace("\u2215", "/"))
    return re.sub(r"\$([^$]{1,100})\$", r"\1", re.sub("[{}]", " ", text))


def _fraction(found: re.Match[str]) -> str:
    whole, top, under = found["whole"], found["top"] or found["t"], found["under"] or found["u"]
    if not whole:
        return top or found[0]
    part = unicodedata.numeric(found["one"]) if top is None else float(top) / (int(under) or 1)
    return repr(int(whole) + part)


def _deciding(answer: str) -> list[Any]:
    """Return the members that may decide, if the answer is JSON, else the answer."""
    answer = answer[-LONGEST:]
    start, end = answer.find("{"), answer.rfind("}")
    try:
        found = json.loads(answer[start : end + 1]) if start >= 0 else None
    except (ValueError, RecursionError):
        return [answer]
    return [answer] if found is None else [*_members(found)]


def _members(found: Mapping[str, Any]) -> Iterator[Any]:
    named = [found[name] for name in found if _NAMES.fullmatch(name) or len(found) == 1]
    for value in named or found.values():
        if isinstance(value, Mapping):
            yield from _members(value)
        else:
            yield value


def _plain(text: str) -> str:
    """Return a text without marks of emphasis, its letters and punctuation of the usual width."""
    return re.sub(r"[*`]+|(?<!\w)_+|_+(?!\w)", "", "".join(map(_usual, text)))


def _usual(letter: str) -> str:
    wide = unicodedata.east_asian_width(letter) == "F"
    return unicodedata.normalize("NFKC", letter) if wide else letter
