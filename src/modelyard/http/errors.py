"""Errors of HTTP itself, found before a use case is called. `modelyard.http.error_responses` has their statuses."""

from collections.abc import Sequence

from modelyard.errors import CallerError


class MalformedRequest(CallerError):
    """A header, path or query that cannot be read."""

    code = "malformed_request"


class UnknownRoute(CallerError):
    """No route has this path."""

    code = "unknown_route"
    status = 404


class MethodNotAllowed(CallerError):
    """The path exists, with other methods."""

    code = "method_not_allowed"
    status = 405

    def __init__(self, allow: Sequence[str]) -> None:
        self.allow: str = ", ".join(allow)
        """The methods of the path, as the header `Allow` lists them."""
        super().__init__(f"this path has no such method; it has {self.allow}")


class UnsupportedMedia(CallerError):
    """The body is declared to be of a type that the route does not take."""

    code = "unsupported_media_type"
    status = 415


class Gone(CallerError):
    """What was promised is not there any more: send the request again."""

    code = "gone"
    status = 410


class ClientDisconnected(CallerError):
    """The connection closed before the request had come in, or the response had gone out."""

    code = "client_disconnected"


class BodyTimeout(CallerError):
    """The body came too slowly."""

    code = "body_timeout"
    status = 408
