"""What a connection to the server may take."""

import attrs


@attrs.frozen
class Bounds:
    """What a connection may take before its request is whole: bytes of the head, or of a body's trailers, and seconds.
    While more `connections` are open, those without a request are closed. An answer of which a client has read nothing
    for `unread_seconds` is given up."""

    head_bytes: int = 2**16
    head_seconds: float = 30.0
    connections: int = 2**14
    unread_seconds: float = 60.0
