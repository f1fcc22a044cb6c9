"""The tabular model's tokenizer: fixed, and lossless for all text that encodes to UTF-8.

Ids 0 to 255 are the single bytes, 256 ends a turn, and the rest are chunks of common English. Text is cut into the
longest chunks that fit, from left to right; what no chunk covers falls back to its bytes. No two tokens have the same
bytes, so an id can be recovered from the bytes that a log-probability carries.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import chain

END_OF_TURN = 256

# Words that follow a space, from the most common ones down: the untrained model's prior follows this order.
_WORDS = """
the to you and of a your is in for it we that on can be with this are will as not or at from by if an have all my do
please our was but has what so how when no one out up about which would their time any new day days then help order
account email choose send page address number press click open settings under free back after within see need find get
only also other use like just know right over its who me now change before here very should two
I You We The If It Please
"""

# Words and parts of words wherever they stand; the first line opens sentences.
_PARTS = """
The You We How If It To Can Go This What Yes No Thank Sorry Hello Please Your Open Settings Choose
th he in er an re on at en nd or es ti te it is ar st ou al ed to nt ng le se ha as ve ro ll ea li om ri me de co ma ne
ra la el ic ce ta ch ge ca di et us ut un ss ee ly ur ol lo pe tr ac sh pl su si so sp em ad id il im ir ke mo mi op ow
po pr qu ul um ck ct mp ab ay ting ion ent ers est ment able ight ation ect ount ther ever ard age ous all con pro
ing ess
"""

_FIRST_LETTERS = [f" {letter}" for letter in "abcdefghilmnoprstuvwy"]

CHUNKS: tuple[str, ...] = tuple(
    dict.fromkeys([*(f" {word}" for word in _WORDS.split()), *_PARTS.split(), *_FIRST_LETTERS])
)
_BYTES: tuple[bytes, ...] = (*(bytes([byte]) for byte in range(256)), b"", *(chunk.encode() for chunk in CHUNKS))
VOCABULARY_SIZE = len(_BYTES)
TOKENS = tuple(range(VOCABULARY_SIZE))
"""All ids, as the objects that `encode` gives: tables with keys of one kind alone find them by identity."""
# What the untrained model prefers at the beginning of a sentence, and within it.
OPENING_IDS = range(_BYTES.index(b"The"), _BYTES.index(b"th"))
WORD_IDS = range(END_OF_TURN + 1, OPENING_IDS.start)
_IDS = dict(zip(_BYTES, TOKENS, strict=True))
_CHUNK_IDS = {token.decode(): id_ for token, id_ in _IDS.items() if token.isascii() and token}


def _longest(chunks: Sequence[str]) -> str:
    """Return a pattern for the longest of these that fits: a tree of their letters, faster than a list of
    alternatives.
    """
    rests: dict[str, list[str]] = {}
    for chunk in filter(None, chunks):
        rests.setdefault(chunk[0], []).append(chunk[1:])
    branches = "|".join(re.escape(first) + _longest(rest) for first, rest in rests.items())
    return f"(?:{branches}){'?' if '' in chunks else ''}" if branches else ""


_CUT = re.compile(_longest(CHUNKS) + "|.", re.DOTALL)


def encode(text: str) -> list[int]:
    """Return the ids of the tokens of `text`. Raises UnicodeEncodeError on lone surrogates."""
    chunks = _CUT.findall(text)
    try:
        return list(map(_CHUNK_IDS.__getitem__, chunks))
    except KeyError:  # letters beyond ASCII, which are bytes
        return list(chain.from_iterable((_CHUNK_IDS[one],) if one in _CHUNK_IDS else one.encode() for one in chunks))


def decode(ids: Iterable[int]) -> str:
    """Return the text of these tokens; invalid UTF-8 becomes U+FFFD, the end of a turn becomes nothing."""
    return b"".join(map(_BYTES.__getitem__, ids)).decode(errors="replace")


def token_bytes(token_id: int) -> bytes:
    """Return the bytes of a token; none for the end of a turn."""
    return _BYTES[token_id]


def token_text(token_id: int) -> str:
    """Return a token as it is shown with its log-probability; empty for the end of a turn."""
    return _BYTES[token_id].decode(errors="replace")


def token_id(token: bytes) -> int | None:
    """Return the id of the token with these bytes, or None."""
    return _IDS.get(token)
