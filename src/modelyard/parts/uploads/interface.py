"""The interface of the part `uploads`."""

from modelyard.http.interface import Auth, Interface
from modelyard.parts.uploads.errors import ERRORS

_GUARD = (Auth.PUBLIC, ERRORS)
UPLOADS = Interface(
    "uploads",
    ERRORS,
    {("uploads",): _GUARD, ("graphql",): _GUARD},
    standard=False,
    description="Uploads of training data as artifacts.",
)
