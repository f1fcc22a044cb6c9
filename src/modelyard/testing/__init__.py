"""What modelyard promises, runnable: contracts for what you implement, doubles and strategies for your own tests, and
clients wired to a platform in process.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modelyard.testing.cassette.cassette import use_cassette
    from modelyard.testing.clients.openai import async_openai_client, openai_client
    from modelyard.testing.clients.server import served
    from modelyard.testing.contracts.artifacts import ArtifactStoreContract
    from modelyard.testing.contracts.authenticator import AuthenticatorContract
    from modelyard.testing.contracts.backend import BackendContract
    from modelyard.testing.contracts.executor import ExecutorContract, Trials, TrialsHere
    from modelyard.testing.contracts.run_twice_store import RunTwiceStore
    from modelyard.testing.contracts.store import StoreContract
    from modelyard.testing.contracts.store_machine import StoreMachine, machine_over
    from modelyard.testing.contracts.store_values import CONTRACT_RECORDS
    from modelyard.testing.contracts.trainer import TrainerContract
    from modelyard.testing.network_guard import LeftLoopback, LoopbackGuard

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
    "ArtifactStoreContract": "contracts.artifacts",
    "AuthenticatorContract": "contracts.authenticator",
    "BackendContract": "contracts.backend",
    "CONTRACT_RECORDS": "contracts.store_values",
    "ExecutorContract": "contracts.executor",
    "StoreContract": "contracts.store",
    "StoreMachine": "contracts.store_machine",
    "TrainerContract": "contracts.trainer",
    "Trials": "contracts.executor",
    "TrialsHere": "contracts.executor",
    "machine_over": "contracts.store_machine",
}
_HOMES = {
    **_CONTRACTS,
    "LeftLoopback": "network_guard",
    "LoopbackGuard": "network_guard",
    "RunTwiceStore": "contracts.run_twice_store",
    "async_openai_client": "clients.openai",
    "openai_client": "clients.openai",
    "served": "clients.server",
    "use_cassette": "cassette.cassette",
}
"""Where the names of this package live: each module is loaded when the first of its names is asked for."""

if "pytest" in sys.modules:
    # So that a law that is broken shows by which values, as in a test of one's own.
    sys.modules["pytest"].register_assert_rewrite(
        *(
            f"{__name__}.{module}"
            for module in {*_CONTRACTS.values(), "contracts.store_records", "contracts.store_steps"}
        )
    )


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, getattr(import_module(f"{__name__}.{_HOMES[name]}"), name))
