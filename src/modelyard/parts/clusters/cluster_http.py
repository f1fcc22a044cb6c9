"""Requests to the HTTP interface of a cluster, and what goes wrong with them, in one error."""

import json
import ssl
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, HTTPSHandler, ProxyHandler, Request, build_opener

import attrs

from modelyard.errors import ClusterError, InvalidInput

SECONDS = 30.0
"""How long an answer may take."""
SHOWN = 500
"""How many characters of a refusal are repeated."""


@attrs.frozen
class ClusterAnswer:
    status: int
    body: bytes
    made: str = ""

    @property
    def date(self) -> datetime | None:
        """When it was made, by the clock of the cluster; None if it does not say so."""
        try:
            made = parsedate_to_datetime(self.made)
        except (TypeError, ValueError):
            return None
        return made if made.utcoffset() == timedelta() else None

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """Return the value of the body. Raises `ClusterError` if the body is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise ClusterError(f"the cluster answers what is not JSON ({error}): {self.text[:SHOWN]}") from None


class _NoRedirect(HTTPRedirectHandler):
    """Follows no redirect, so that a token goes nowhere else."""

    def redirect_request(self, *_: Any) -> None:
        """Return None: the redirect is a refusal."""


class ClusterHttp:
    """The cluster below `address`, an http or https URL; each request carries what `token` returns.

    `certificates` verify its name, by default those of the system; the environment's proxies are not used. Raises
    `InvalidInput`.
    """

    def __init__(
        self,
        kind: str,
        address: str,
        token: Callable[[], str] | None = None,
        certificates: ssl.SSLContext | None = None,
    ) -> None:
        if not address.startswith(("http://", "https://")):
            raise InvalidInput.at("address", msg=f"{address!r} is not like http://host:port")
        self._address = address.rstrip("/")
        self.name: str = f"{kind} {self._address}"
        self._token = token
        certificates = certificates or ssl.create_default_context()
        self._opener = build_opener(ProxyHandler({}), _NoRedirect(), HTTPSHandler(context=certificates))

    def request(self, method: str, path: str, body: Any = None, allowed: Collection[int] = ()) -> ClusterAnswer:
        """Send one request. Raises `ClusterError` unless it succeeds, or is refused with a status that is allowed."""
        data = None if body is None else json.dumps(body).encode()
        request = Request(self._address + path, data, self._headers(), method=method)  # noqa: S310 - checked above
        try:
            with self._opener.open(request, timeout=SECONDS) as found:
                return ClusterAnswer(found.status, found.read(), found.headers["Date"] or "")
        except HTTPError as refusal:
            with refusal:
                answer = ClusterAnswer(refusal.code, refusal.read())
        except (OSError, HTTPException) as error:
            raise ClusterError(f"{self.name} does not answer ({error}); look whether it runs there") from None
        if answer.status in allowed:
            return answer
        raise ClusterError(f"{self.name} refuses {method} {path} with {answer.status}: {_words(answer)}")

    def _headers(self) -> dict[str, str]:
        token = {} if self._token is None else {"Authorization": f"Bearer {self._token()}"}
        return {"Content-Type": "application/json", **token}


def _words(answer: ClusterAnswer) -> str:
    needs = "it needs a token that may do this; " if answer.status in (401, 403) else ""
    return needs + answer.text[-SHOWN:]
