"""The interface of the part `messages`."""

from modelyard.http.interface import Auth, Interface
from modelyard.parts.messages import errors

MESSAGES = Interface(
    "messages",
    errors.MESSAGES,
    {("v1", "messages"): (Auth.API_KEY, errors.MESSAGES)},
    description="Conversations in the messages format.",
)
