"""Arguments of calls that a model has made: whether a client can parse them."""

import json
from typing import Never


def _refused(name: str) -> Never:
    raise ValueError(f"{name} is not JSON")


_ANY = json.JSONDecoder(parse_constant=_refused, parse_float=str, parse_int=str)


def is_json(text: str) -> bool:
    """Return whether any parser of JSON reads the text: no number is too large, and a key may occur twice.

    >>> is_json('{"a": 1e999, "a": 2}'), is_json('{"a": NaN}'), is_json('{"a": ')
    (True, False, False)
    """
    try:
        _ANY.decode(text)
    except (ValueError, RecursionError):
        return False
    return True
