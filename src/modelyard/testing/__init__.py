"""What modelyard promises, runnable: contracts for what you implement, doubles and strategies for your own tests, and
clients wired to a platform in process.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from modelyard.deferred import defer_modules

if TYPE_CHECKING:
    from modelyard.testing.artifacts import ArtifactStoreContract
    from modelyard.testing.authenticator import AuthenticatorContract
    from modelyard.testing.backend import BackendContract
    from modelyard.testing.cassette import use_cassette
    from modelyard.testing.executor import ExecutorContract, Trials, TrialsHere
    from modelyard.testing.loopback import LeftLoopback, LoopbackGuard
    from modelyard.testing.openai import async_openai_client, openai_client
    from modelyard.testing.run_twice import RunTwiceStore
    from modelyard.testing.server import served
    from modelyard.testing.store import StoreContract
    from modelyard.testing.store_machine import StoreMachine, machine_over
    from modelyard.testing.store_values import CONTRACT_RECORDS
    from modelyard.testing.trainer import TrainerContract

__all__ = [
    "CONTRACT_RECORDS",
    "ArtifactStoreContract",
    "AuthenticatorContract",
    "BackendContract",
    "ExecutorContract",
    "LeftLoopback",
    "LoopbackGuard",
    "RunTwiceStore",
    "StoreContract",
    "StoreMachine",
    "TrainerContract",
    "Trials",
    "TrialsHere",
    "async_openai_client",
    "machine_over",
    "openai_client",
    "served",
    "use_cassette",
]

_CONTRACTS = {
    "ArtifactStoreContract": "artifacts",
    "AuthenticatorContract": "authenticator",
    "BackendContract": "backend",
    "CONTRACT_RECORDS": "store_values",
    "ExecutorContract": "executor",
    "StoreContract": "store",
    "StoreMachine": "store_machine",
    "TrainerContract": "trainer",
    "Trials": "executor",
    "TrialsHere": "executor",
    "machine_over": "store_machine",
}
_HOMES = {
    **_CONTRACTS,
    "LeftLoopback": "loopback",
    "LoopbackGuard": "loopback",
    "RunTwiceStore": "run_twice",
    "async_openai_client": "openai",
    "openai_client": "openai",
    "served": "server",
    "use_cassette": "cassette",
}
"""Where the names of this package live: each module is loaded when the first of its names is asked for."""

defer_modules(__name__, "httpx", "httpx2")

if "pytest" in sys.modules:
    # So that a law that is broken shows by which values, as in a test of one's own.
    sys.modules["pytest"].register_assert_rewrite(
        *(f"{__name__}.{module}" for module in {*_CONTRACTS.values(), "store_records", "store_steps"})
    )


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, getattr(import_module(f"{__name__}.{_HOMES[name]}"), name))
