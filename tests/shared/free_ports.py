"""Ports for programs that take no socket and can only be given a number."""

import random
import socket
from contextlib import closing, suppress

BELOW_THE_SYSTEMS_OWN = range(20_000, 32_000)
"""Linux gives none of these to a client, so that none is taken between the look and its use."""


def free_ports(number: int) -> list[int]:
    """Return ports on which nothing listens now."""
    found: list[int] = []
    for port in random.sample(BELOW_THE_SYSTEMS_OWN, len(BELOW_THE_SYSTEMS_OWN)):
        with closing(socket.socket()) as one, suppress(OSError):
            one.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == number:
            break
    return found
