"""The platform of each process of `tests.campaigns.fleet_faults`: short leases, a model server behind a gate, a bucket.

It is read from the environment, as `modelyard serve --factory fleet_yard:platform` does; `FLEET_SABOTAGE` breaks it.
"""

import itertools
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import attrs
from obstore.store import S3Store

from modelyard import Platform, open_platform
from modelyard.backends.echo import EchoBackend
from modelyard.backends.router import Router
from modelyard.domain.catalogue import Pricing
from modelyard.engines.tabular.backend import TabularBackend
from modelyard.errors import StoreClosed
from modelyard.http.endpoint import Endpoint
from modelyard.parts.objects.store import ObjectArtifacts
from modelyard.parts.upstream.backend import UpstreamBackend
from modelyard.parts.upstream.models import offer
from modelyard.parts.upstream.timeouts import Timeouts
from modelyard.platform.jobs import worker
from modelyard.platform.jobs.expired_claims import ExpiredClaims
from modelyard.platform.runtime import Settings

LEASE = 2.0
PRICING = Pricing(request="0.01")
PATIENT = Timeouts(connect=1.0, first_token=3.0, between_tokens=3.0, retries=2, backoff=0.1, deadline=5.0)
CLIENT: Any = {"allow_http": True, "connect_timeout": "1s", "read_timeout": "3s", "timeout": "10s"}
RETRIES: Any = {
    "max_retries": 2,
    "retry_timeout": timedelta(seconds=5),
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=0.5), "base": 2},
}
NTH = 10
"""One of so many answers is broken by a sabotage."""
NTH_COMMIT = 7
"""And of so many steps: steps of one kind come in twos and threes."""
TURNS = 30
"""Of a worker, after which its loop ends: some seconds."""


class _Undone(Exception):
    pass


def platform() -> Platform:
    """Open the platform of this process."""
    sabotage = os.environ.get("FLEET_SABOTAGE", "")
    if sabotage:
        SABOTAGES[sabotage]()
    bucket = S3Store(os.environ["FLEET_BUCKET"], client_options=CLIENT, retry_config=RETRIES)
    served = offer("served", context_length=4096, pricing=PRICING)
    upstream = UpstreamBackend(os.environ["FLEET_MODEL_SERVER"], models=[served], timeouts=PATIENT)
    opened = open_platform(
        os.environ["FLEET_STORE"],
        artifacts=ObjectArtifacts(bucket, os.environ["FLEET_CACHE"]),
        backend=Router([EchoBackend(pricing=PRICING), TabularBackend(), upstream]),
        settings=Settings(lease=LEASE, admission_lease=LEASE, poll=0.1, durable_usage=True),
    )
    if sabotage == "skip a commit":
        store: Any = opened._runtime.store
        store.transact, store.atransact = _forgetful(store.transact), _aforgetful(store.atransact)
    return opened


# ---- what breaks it on purpose ---------------------------------------------------------------------------------------


def _undone(step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def undone(tx: Any) -> None:
        raise _Undone(step(tx))

    return undone


def _forgetful(transact: Callable[..., Any]) -> Callable[..., Any]:
    """Answer some steps as if they were committed, and undo them."""
    calls = itertools.count(1)

    def forget(step: Callable[[Any], Any], durable: bool = True) -> Any:
        if next(calls) % NTH_COMMIT:
            return transact(step, durable)
        try:
            return transact(_undone(step), durable)
        except _Undone as found:
            return found.args[0]

    return forget


def _aforgetful(transact: Callable[..., Any]) -> Callable[..., Any]:
    calls = itertools.count(1)

    async def forget(step: Callable[[Any], Any], durable: bool = True) -> Any:
        if next(calls) % NTH_COMMIT:
            return await transact(step, durable)
        try:
            return await transact(_undone(step), durable)
        except _Undone as found:
            return found.args[0]

    return forget


def _swallow_claims() -> None:
    submit, calls = worker.Worker._submit, itertools.count(1)
    worker.Worker._submit = lambda self, claimed: bool(next(calls) % 2) or submit(self, claimed)  # type: ignore[method-assign]


def _take_from_the_living() -> None:
    reclaim = ExpiredClaims.reclaim

    def greedy(self: Any, mine: Any, take_over: Any) -> None:
        for progress in self._next_page():
            if progress.beat and progress.worker_id not in {claim.worker_id for claim in mine}:
                self.take(progress)
        reclaim(self, mine, take_over)

    ExpiredClaims.reclaim = greedy  # type: ignore[method-assign]


def _outlive_its_loop() -> None:
    turn, turns = worker.Worker._turn, itertools.count(1)

    def ending(self: Any) -> None:
        if next(turns) > TURNS:
            raise StoreClosed
        turn(self)

    worker.Worker._turn = ending  # type: ignore[method-assign]
    worker.Worker.fail = lambda self: None  # type: ignore[method-assign]


def _answer_500() -> None:
    ahandle, calls = Endpoint.ahandle, itertools.count(1)

    async def failing(self: Any, request: Any) -> Any:
        response = await ahandle(self, request)
        return response if next(calls) % NTH else attrs.evolve(response, status=500)

    Endpoint.ahandle = failing  # type: ignore[method-assign]


SABOTAGES: dict[str, Callable[[], None]] = {
    "skip a commit": lambda: None,
    "swallow a claim": _swallow_claims,
    "take from the living": _take_from_the_living,
    "outlive its loop": _outlive_its_loop,
    "answer 500": _answer_500,
    "lose a file": lambda: None,
}
"""What is broken, each found by another check. The campaign itself loses files."""
OF_WORKERS = {"swallow a claim", "take from the living", "outlive its loop"}
