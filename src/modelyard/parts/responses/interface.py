"""The interface of the part `responses`."""

from modelyard.http.error_responses import ERROR
from modelyard.http.interface import Auth, Interface

RESPONSES = Interface(
    "responses",
    ERROR,
    {("v1", "responses"): (Auth.BEARER, ERROR)},
    description="Conversations that the server keeps, answered at once, streamed or in the background.",
)
