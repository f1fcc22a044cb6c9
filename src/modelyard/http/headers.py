"""The headers of a request and of a response, and the index of those of a request."""

from collections.abc import Sequence, Set

from modelyard.http.errors import MalformedRequest

Header = tuple[str, str]
RawHeader = tuple[bytes, bytes]


class Headers(dict[bytes, bytes]):
    """A request's headers as they were sent, by lower-case name. Few of them are ever read."""

    __slots__ = ()

    def text(self, name: bytes) -> str | None:
        value = self.get(name)
        return None if value is None else value.decode("latin-1")

    def texts(self) -> dict[str, str]:
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in self.items()}


SINGULAR = frozenset(
    {
        b"authorization",
        b"x-api-key",
        b"api-key",
        b"content-type",
        b"content-encoding",
        b"content-length",
        b"openai-project",
        b"compat-project",
        b"idempotency-key",
        b"project_id",
    }
)
"""Headers that decide something, and so must not come twice."""

MAX_NAMES = 256
"""How many names of headers are remembered: more than any client has."""

_NO_NAMES: Set[bytes] = frozenset()
_lower_names: set[bytes] = {b"host", *SINGULAR}


def headers_of(pairs: Sequence[Header] | Sequence[RawHeader]) -> tuple[Headers, Set[bytes]]:
    headers = Headers(pairs)  # type: ignore[arg-type] # of text are none of the names below
    if len(headers) == len(pairs) and _lower_names.issuperset(headers):
        return headers, _NO_NAMES
    raw = [(_raw(name).lower(), _raw(value)) for name, value in pairs]
    names = [name for name, _ in raw]
    if len(_lower_names) + len(names) <= MAX_NAMES:
        _lower_names.update(names)
    doubled = {name for name in names if names.count(name) > 1}
    return Headers([pair for pair in raw if pair[0] not in doubled]), doubled


def _raw(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("latin-1", "replace")


def check_singular(doubled: Set[bytes]) -> None:
    for name in sorted(doubled & SINGULAR):
        raise MalformedRequest(f"the header {name.decode()} was sent more than once; send it once")
