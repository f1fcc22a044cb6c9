"""What modelyard promises, runnable: contracts for what you implement, doubles and strategies for your own tests, and
clients wired to a platform in process.
"""

import sys
from typing import TYPE_CHECKING, Any

from modelyard.errors import MissingExtra
from modelyard.lazy import lazy_exports

if TYPE_CHECKING:
    from modelyard.parts.doors import testing as _parts
    from modelyard.parts.doors.testing import *  # noqa: F403
    from modelyard.testing.cassette.cassette import use_cassette
    from modelyard.testing.clients.httpx import HttpxTransport
    from modelyard.testing.clients.httpx2 import Httpx2Transport
    from modelyard.testing.clients.openai import async_openai_client, openai_client
    from modelyard.testing.clients.server import served
    from modelyard.testing.clock import ManualClock
    from modelyard.testing.contracts import backend_client, strategies
    from modelyard.testing.contracts.artifacts import ArtifactStoreContract
    from modelyard.testing.contracts.authenticator import AuthenticatorContract
    from modelyard.testing.contracts.backend import BackendContract
    from modelyard.testing.contracts.domain_store import DomainStore, LeftDomain
    from modelyard.testing.contracts.embedder import EmbedderContract
    from modelyard.testing.contracts.executor import ExecutorContract
    from modelyard.testing.contracts.executor_trials import Trials, TrialsElsewhere, TrialsHere
    from modelyard.testing.contracts.part import PartContract
    from modelyard.testing.contracts.run_twice_store import RunTwiceStore
    from modelyard.testing.contracts.step_trainer import StepTrainerContract
    from modelyard.testing.contracts.store import StoreContract
    from modelyard.testing.contracts.store_machine import StoreMachine, machine_over
    from modelyard.testing.contracts.store_values import CONTRACT_RECORDS
    from modelyard.testing.contracts.trainer import TrainerContract
    from modelyard.testing.faults.faults import Faults
    from modelyard.testing.faults.kinds import Cut, Disconnect, Killed, Malformed, Slow, TakenOver, Timeout
    from modelyard.testing.intercept.interception import intercept
    from modelyard.testing.network_guard import LeftLoopback, LoopbackGuard

    __all__ = [
        "CONTRACT_RECORDS",
        "ArtifactStoreContract",
        "AuthenticatorContract",
        "BackendContract",
        "Cut",
        "Disconnect",
        "DomainStore",
        "EmbedderContract",
        "ExecutorContract",
        "Faults",
        "Httpx2Transport",
        "HttpxTransport",
        "Killed",
        "LeftDomain",
        "LeftLoopback",
        "LoopbackGuard",
        "Malformed",
        "ManualClock",
        "PartContract",
        "RunTwiceStore",
        "Slow",
        "StepTrainerContract",
        "StoreContract",
        "StoreMachine",
        "TakenOver",
        "Timeout",
        "TrainerContract",
        "Trials",
        "TrialsElsewhere",
        "TrialsHere",
        "async_openai_client",
        "backend_client",
        "intercept",
        "machine_over",
        "openai_client",
        "served",
        "strategies",
        "use_cassette",
    ]
    __all__ += _parts.__all__
else:
    _load, __dir__ = lazy_exports(
        __name__,
        {
            "testing.cassette.cassette": ("use_cassette",),
            "testing.clients.httpx": ("HttpxTransport",),
            "testing.clients.httpx2": ("Httpx2Transport",),
            "testing.clients.openai": ("async_openai_client", "openai_client"),
            "testing.clients.server": ("served",),
            "testing.clock": ("ManualClock",),
            "testing.contracts.artifacts": ("ArtifactStoreContract",),
            "testing.contracts.authenticator": ("AuthenticatorContract",),
            "testing.contracts.backend": ("BackendContract",),
            "testing.contracts.backend_client": ("backend_client",),
            "testing.contracts.domain_store": ("DomainStore", "LeftDomain"),
            "testing.contracts.embedder": ("EmbedderContract",),
            "testing.contracts.executor": ("ExecutorContract",),
            "testing.contracts.executor_trials": ("Trials", "TrialsElsewhere", "TrialsHere"),
            "testing.contracts.part": ("PartContract",),
            "testing.contracts.run_twice_store": ("RunTwiceStore",),
            "testing.contracts.step_trainer": ("StepTrainerContract",),
            "testing.contracts.store": ("StoreContract",),
            "testing.contracts.store_machine": ("StoreMachine", "machine_over"),
            "testing.contracts.store_values": ("CONTRACT_RECORDS",),
            "testing.contracts.strategies": ("strategies",),
            "testing.contracts.trainer": ("TrainerContract",),
            "testing.faults.faults": ("Faults",),
            "testing.faults.kinds": ("Cut", "Disconnect", "Killed", "Malformed", "Slow", "TakenOver", "Timeout"),
            "testing.intercept.interception": ("intercept",),
            "testing.network_guard": ("LeftLoopback", "LoopbackGuard"),
        },
    )

    def __getattr__(name: str) -> Any:
        try:
            return _load(name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "hypothesis":
                raise
            raise MissingExtra("hypothesis", "contracts") from error


if "pytest" in sys.modules:
    # So that a law that is broken shows by which values, as in a test of one's own.
    sys.modules["pytest"].register_assert_rewrite(
        *(
            f"{__name__}.contracts.{module}"
            for module in (
                "artifacts",
                "authenticator",
                "backend",
                "executor",
                "part",
                "part_names",
                "part_records",
                "part_routes",
                "part_tenants",
                "step_trainer",
                "store",
                "store_domains",
                "store_machine",
                "store_records",
                "store_steps",
                "store_values",
                "trainer",
            )
        )
    )
