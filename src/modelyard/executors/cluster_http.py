"""Requests to the HTTP interface of a cluster, and what goes wrong with them, in one error."""

import ssl
from collections.abc import Collection
from typing import Any

from modelyard.errors import ClusterError, InvalidInput, MissingExtra

try:
    import httpx
except ImportError as error:
    raise MissingExtra("httpx", "upstream") from error

SECONDS = 30.0
"""How long an answer may take."""
SHOWN = 500
"""How many characters of a refusal are repeated."""


class ClusterHttp:
    """The cluster below `address`, an http or https URL; each request carries the `token`. Raises `InvalidInput`.

    `certificates` verify its name, by default those of the system; the environment's proxies are not used.
    """

    def __init__(
        self, kind: str, address: str, token: str | None = None, certificates: ssl.SSLContext | None = None
    ) -> None:
        if not address.startswith(("http://", "https://")):
            raise InvalidInput.at("address", msg=f"{address!r} is not like http://host:port")
        self.name = f"{kind} {address.rstrip('/')}"
        self._client = httpx.Client(
            base_url=address.rstrip("/"),
            headers={} if token is None else {"Authorization": f"Bearer {token}"},
            timeout=SECONDS,
            trust_env=False,
            verify=certificates or (ssl.create_default_context() if address.startswith("https") else False),
        )

    def request(self, method: str, path: str, body: Any = None, allowed: Collection[int] = ()) -> httpx.Response:
        """Send one request. Raises `ClusterError` unless it succeeds, or is refused with a status that is allowed."""
        try:
            answer = self._client.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise ClusterError(
                f"{self.name} does not answer ({type(error).__name__}: {error}); look whether it runs there"
            ) from None
        if not answer.is_success and answer.status_code not in allowed:
            raise ClusterError(f"{self.name} refuses {method} {path} with {answer.status_code}: {_words(answer)}")
        return answer


def _words(answer: httpx.Response) -> str:
    if answer.status_code in (401, 403):
        return f"it needs a token that may do this. {answer.text[-SHOWN:]}"
    return answer.text[-SHOWN:]
