"""The interface of the part `tinker`."""

from modelyard.http.error_responses import DETAIL
from modelyard.http.interface import Auth, Interface
from modelyard.parts.tinker.http.not_offered import why_missing

TINKER = Interface(
    "tinker",
    DETAIL,
    {("api", "v1"): (Auth.API_KEY, DETAIL)},
    why_missing,
    description="Training runs that their client drives command by command.",
)
