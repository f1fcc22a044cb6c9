"""Errors of HTTP itself, found before a use case is called. `modelyard.http.error_responses` has their statuses."""

from collections.abc import Sequence

from modelyard.errors import CallerError


class MalformedRequest(CallerError):
    code = "malformed_request"


class UnknownRoute(CallerError):
    code = "unknown_route"
    status = 404


class MethodNotAllowed(CallerError):
    code = "method_not_allowed"
    status = 405

    def __init__(self, allow: Sequence[str]) -> None:
        self.allow: str = ", ".join(allow)
        """The methods of the path, as the header `Allow` lists them."""
        super().__init__(f"this path has no such method; it has {self.allow}")


class UnsupportedMedia(CallerError):
    code = "unsupported_media_type"
    status = 415


class Gone(CallerError):
    """The resource is no longer there: send the request again."""

    code = "gone"
    status = 410


class ClientDisconnected(CallerError):
    code = "client_disconnected"


class BodyTimeout(CallerError):
    """The body came too slowly."""

    code = "body_timeout"
    status = 408
