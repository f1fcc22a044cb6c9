"""The locks that make steps serial: one for all steps, or one for each domain in which they stay.

A step of any kind holds the lock of all steps: alone, or together with others that are within domains. Each lock is
held until the commit, after which its effects can be seen.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

from modelyard.parts.postgres.pages import Statement
from modelyard.parts.postgres.values import array_of_integers, escape
from modelyard.protocols import Domain, DomainStep, Tx
from modelyard.stores.pending_steps import PendingStep

LOCK = "SELECT pg_advisory_xact_lock($1)"
_NOW = "extract(epoch FROM clock_timestamp())::float8"
_ALONE = f"SELECT pg_advisory_xact_lock($1), {_NOW}"
_EACH = "SELECT count(pg_advisory_xact_lock(key)) FROM unnest($2::bigint[]) AS key"
_ONE = f"SELECT pg_advisory_xact_lock_shared($1), pg_advisory_xact_lock($2), {_NOW}"
_SHARED = f"SELECT pg_advisory_xact_lock_shared($1), ({_EACH}), {_NOW}"

_SEPARATOR = "\x1f"
_MOST_DOMAINS = 32
"""Domains that a transaction locks one by one: the server has room for a number of locks."""


@lru_cache(maxsize=10_000)
def lock_key(schema: str, *names: str) -> int:
    """Return the number of the advisory lock with this name: the same for all who share the records."""
    digest = hashlib.sha256(_text(schema, *names).encode("utf-8", "backslashreplace")).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def _text(*names: str) -> str:
    return _SEPARATOR.join(map(escape, names))


def try_domain_lock(schema: str, kind: str, name: str) -> str:
    """Return the expression that takes the lock of the domain of this name, in SQL, unless another step holds it."""
    start = _text(schema, "domain", kind, "").replace("'", "''")
    digest = f"sha256(convert_to('{start}' || {name}, 'UTF8'))"
    return f"pg_try_advisory_xact_lock(('x' || left(encode({digest}, 'hex'), 16))::bit(64)::bigint)"


def domains_of(group: Iterable[PendingStep[Any]]) -> set[Domain] | None:
    """Return the domains in which the steps of a group stay; None if one may touch anything."""
    domains: set[Domain] = set()
    for call in group:
        step = call.step
        if not isinstance(step, DomainStep):
            return None
        domains.update(step.domains)
    return domains if len(domains) <= _MOST_DOMAINS else None


def asks_of(step: Callable[[Tx], Any]) -> Sequence[Callable[[Tx], Any]]:
    """Return what a step has announced that it asks for."""
    return step.asks if isinstance(step, DomainStep) else ()


def lock_statement(schema: str, domains: set[Domain] | None) -> Statement:
    """Return the statement that waits until no other step may touch these domains, or anything.

    Locks are taken in one order, so that no two transactions wait for each other. The last column is the server's time
    after that.
    """
    everything = lock_key(schema, "steps")
    if domains is None:
        return _ALONE, (everything,)
    if len(domains) == 1:
        (domain,) = domains
        return _ONE, (everything, lock_key(schema, "domain", *domain))
    keys = sorted(lock_key(schema, "domain", *domain) for domain in domains)
    return _SHARED, (everything, array_of_integers(keys))
