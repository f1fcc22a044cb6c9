"""The interface of the part `completions`."""

from modelyard.http.error_responses import ERROR
from modelyard.http.interface import Auth, Interface

COMPLETIONS = Interface(
    "completions",
    ERROR,
    {("v1", "completions"): (Auth.BEARER, ERROR)},
    description="Prompts that are continued as they are, and the tokens of models.",
)
