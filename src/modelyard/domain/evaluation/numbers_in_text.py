"""The numbers that people and models write in texts, read exactly.

A minus may be U+2212 or another dash, and stand before a sign of currency. After a digit, a letter or a bracket it
joins two numbers, as in "3-4" and "COVID-19", and is no sign. Digits may be of any script. Commas, apostrophes and
narrow spaces group digits only before three of them: "1,234" is above a thousand, though in some languages the comma
begins a fraction, and "1,5" is two numbers. If points group the digits before a comma, as in "1.234,5", it begins the
fraction.
"""

import math
import re
from collections import deque
from fractions import Fraction

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
    return Fraction(repr(number)) if isinstance(number, float) else Fraction(number)


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
