"""Which errors say that the disk is full: those of libraries in Rust say it in their texts alone."""

import re

from modelyard.disk import NO_ROOM

_TOLD = re.compile(r"\(os error (\d+)\)")


def says_full(error: BaseException) -> bool:
    told = _TOLD.search(str(error))
    number = int(told[1]) if told else getattr(error, "errno", None)
    return number in NO_ROOM
