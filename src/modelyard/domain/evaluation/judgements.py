"""What a judge decided, read from its words: its last verdict, and the number that is not the scale.

A judge reasons before it decides, and quotes what it judges. So the verdict after a label counts ("Verdict: no"), else
the last one; a member of that name counts in an answer that is JSON. Not verdicts are "no" before a noun ("no issues"),
alternatives ("yes or no", "neither true nor false"), a reference ("the correct answer is"), and questions.
"""

import json
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from modelyard.domain.evaluation.numbers_in_text import NUMBER, number_in

LONGEST = 20_000
"""Characters of an answer that are read, the last ones."""

_LABEL = r"(?:verdict|judge?ment|decision|conclusion|result|answer|score|rating|grade|evaluation|assessment)"
_NAMES = re.compile(rf"(?:(?:final|overall)[ _]?)?{_LABEL}|label|(?:is_)?correct|pass(?:ed)?|value", re.IGNORECASE)
_GOOD = r"yes|true|pass(?:es|ed)?|correct"
_WORD = rf"(?:{_GOOD}|no|false|fail(?:s|ed)?|incorrect)"
_START, _END = r"(?<![a-zà-ɏ0-9_'’-])", r"(?![a-zà-ɏ0-9_'’])"
_ALTERNATIVES = re.compile(
    rf"{_START}neither\s+\S+\s+nor\s+\S+|{_START}{_WORD}\s*(?:/|\||,?\s+or\s+|\s+nor\s+)\s*[\"']?{_WORD}{_END}"
)
_NOT_A_NOUN = (
    r"(?:it|this|that|these|those|the|there|i|we|you|he|she|they|because|since|as|but|and|so|not|its|not?|is|was|an?)\b"
)
_NEGATION = rf"(?:not|never|nothing|none|cannot|no longer|by no means|in no way|[a-z]{{1,10}}n['’]t){_END}"
_ADVERB = r"\s+(?:[a-z]+ly|quite|at|all|so|very|really|the|an?|be|is|are|being|considered|deemed|in|fact)"
_VERDICT = re.compile(
    rf"(?:{_START}(?P<negated>{_NEGATION})(?:{_ADVERB}){{0,3}}\s+)?{_START}"
    rf"(?:(?P<good>{_GOOD})|no(?!\s+(?!{_NOT_A_NOUN})[a-z0-9]|\.\s?\d|-)|false|fail(?:s|ed)?|incorrect){_END}"
    r"(?!\s+[a-z]+\s+(?:is|was|are|were|would|should|being|to\s+be)\b)"
)
_LABELLED = re.compile(rf"{_START}{_LABEL}\s*[\"']?\s*[:=]\s*[\"'(\[]*\s*(?=(?:{_NEGATION}\s+)?{_WORD}{_END})")
_WHOLE = {
    **dict.fromkeys(("да", "是", "对", "正确", "はい", "예", "네", "ja", "oui", "sí", "si", "sim", "نعم", "हाँ"), True),
    **dict.fromkeys(("нет", "否", "不是", "不对", "不正确", "错误", "いいえ", "아니요", "아니오"), False),
    **dict.fromkeys(("nein", "non", "nee", "não", "لا", "नहीं"), False),
}
"""Other languages, where nothing else follows a line break or a colon."""

_TO = r"\s*(?:[-\u2010-\u2013\u2212~]|to|and|through|\.\.+)\s*"
_OUT_OF = re.compile(rf"({NUMBER.pattern})\s*(?:/|out\s+of)\s*(?:a\s+(?:possible|maximum)\s+)?\d")
_SCALE = re.compile(
    rf"[(\[][^()\[\]]{{0,40}}?\d[\d.]{{0,9}}{_TO}\d[^()\[\]]{{0,40}}[)\]]"
    rf"|\b(?:scale|range)\b[^.\n\d]{{0,20}}\d[\d.]{{0,9}}{_TO}\d[\d.]{{0,9}}|\bscale\s+of\s+\d[\d.]{{0,9}}"
    rf"|\d[\d.]{{0,9}}{_TO}\d[\d.]{{0,9}}[\s-]*(?:points?\s+)?(?:scale|range)|\d[\d.]{{0,9}}[\s-]*points?[\s-]+scale"
    r"|\bmax(?:imum)?\b[^.\n\d]{0,15}\d[\d.]{0,9}|\b\d[\d.]{0,9}\s*=\s*[^\W\d]|(?<=\d)\s{0,10}(?:/|(?:out\s+)?of)\s{0,10}[\d.]{1,20}"
)


def verdict_in(answer: str) -> bool | None:
    """Return whether a judge said yes; None without a verdict."""
    said = _decided(answer)
    if isinstance(said, bool):
        return said
    text = _plain(said).lower()
    labelled = (_VERDICT.match(text, label.end()) for label in _LABELLED.finditer(text))
    found = [*filter(None, labelled)] or [*_VERDICT.finditer(_without_alternatives(text))]
    if found:
        return (found[-1]["negated"] is None) is (found[-1]["good"] is not None)
    return _WHOLE.get(re.split(r"[:\n]", text.strip(" .!\n\t。"))[-1].strip(" .!\"'。"))


def _without_alternatives(text: str) -> str:
    sentences = re.split(r"(?<=[.!?\n])", text)
    return _ALTERNATIVES.sub(" ", "".join(one for one in sentences if not one.rstrip().endswith("?")))


def rating_in(answer: str) -> float | None:
    """Return the number that a judge gave: the last one before "/10" or "out of 10", else the last one that is not of a
    scale, as in "(scale 1-5)"."""
    said = _decided(answer)
    if isinstance(said, bool):
        return None
    text = _plain(str(said))
    rated = [*_OUT_OF.finditer(text)]
    number = number_in(rated[-1][1]) if rated else number_in(_SCALE.sub(" ", text))
    try:
        return None if number is None else float(number)
    except OverflowError:
        return None


def label_text(answer: str) -> str:
    """Return the part of an answer in which a label is looked for."""
    return str(_decided(answer))


def _decided(answer: str) -> Any:
    """Return the member that decides, if the answer is JSON, else the answer."""
    answer = answer[-LONGEST:]
    start, end = answer.find("{"), answer.rfind("}")
    try:
        found = json.loads(answer[start : end + 1]) if start >= 0 else None
    except (ValueError, RecursionError):
        return answer
    while isinstance(found, Mapping):
        named = [found[name] for name in found if _NAMES.fullmatch(name)] or [*found.values()][:1]
        found = named[0] if named else None
    return answer if found is None else found if isinstance(found, bool | str) else str(found)


def _plain(text: str) -> str:
    """Return a text without marks of emphasis, its letters and punctuation of the usual width."""
    return re.sub(r"[*`]+|(?<!\w)_+|_+(?!\w)", "", "".join(map(_usual, text)))


def _usual(letter: str) -> str:
    wide = unicodedata.east_asian_width(letter) == "F"
    return unicodedata.normalize("NFKC", letter) if wide else letter
