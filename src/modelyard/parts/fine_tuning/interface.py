"""The interface of the part `fine_tuning`."""

from modelyard.http.error_responses import ERROR
from modelyard.http.interface import Auth, Interface

FINE_TUNING = Interface(
    "fine_tuning",
    ERROR,
    {("v1", "fine_tuning"): (Auth.BEARER, ERROR)},
    description="Fine-tuning jobs on files, in the format of OpenAI.",
)
