"""A chat with the model of an episode, for environments that have no agent of their own."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

CALL_SECONDS = 3600
"""How long a call may take; the loop's deadline comes first."""


def asked(base_url: str, api_key: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message of an answer. Raises RuntimeError with why the call was refused."""
    headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
    request = Request(f"{base_url}/chat/completions", json.dumps(body).encode(), headers)  # noqa: S310 - the loop's own
    try:
        with urlopen(request, timeout=CALL_SECONDS) as answered:  # noqa: S310
            message: dict[str, Any] = json.load(answered)["choices"][0]["message"]
    except HTTPError as error:
        raise RuntimeError(f"a call of the model was refused: {error.code}: {_refusal(error)}") from error
    return message


def _refusal(error: HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (OSError, ValueError, KeyError, TypeError):
        return error.reason


@contextmanager
def in_time(who: str) -> Iterator[None]:
    """Raise RuntimeError that says who did not answer, for the timeout of a client that says nothing."""
    try:
        yield
    except TimeoutError as error:
        raise RuntimeError(f"{who} did not answer in time") from error
