"""Names of parts in `modelyard.testing.contracts`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modelyard.parts.contracts import backend_client, strategies
    from modelyard.parts.contracts.artifacts import ArtifactStoreContract
    from modelyard.parts.contracts.authenticator import AuthenticatorContract
    from modelyard.parts.contracts.backend import BackendContract
    from modelyard.parts.contracts.domain_store import DomainStore, LeftDomain
    from modelyard.parts.contracts.embedder import EmbedderContract
    from modelyard.parts.contracts.executor import ExecutorContract
    from modelyard.parts.contracts.executor_trials import Trials, TrialsElsewhere, TrialsHere
    from modelyard.parts.contracts.part_contract import PartContract
    from modelyard.parts.contracts.step_trainer import StepTrainerContract
    from modelyard.parts.contracts.store import StoreContract
    from modelyard.parts.contracts.store_machine import StoreMachine, machine_over
    from modelyard.parts.contracts.store_values import CONTRACT_RECORDS
    from modelyard.parts.contracts.trainer import TrainerContract

HOMES = {
    "parts.contracts.artifacts": ("ArtifactStoreContract",),
    "parts.contracts.authenticator": ("AuthenticatorContract",),
    "parts.contracts.backend": ("BackendContract",),
    "parts.contracts.backend_client": ("backend_client",),
    "parts.contracts.domain_store": ("DomainStore", "LeftDomain"),
    "parts.contracts.embedder": ("EmbedderContract",),
    "parts.contracts.executor": ("ExecutorContract",),
    "parts.contracts.executor_trials": ("Trials", "TrialsElsewhere", "TrialsHere"),
    "parts.contracts.part_contract": ("PartContract",),
    "parts.contracts.step_trainer": ("StepTrainerContract",),
    "parts.contracts.store": ("StoreContract",),
    "parts.contracts.store_machine": ("StoreMachine", "machine_over"),
    "parts.contracts.store_values": ("CONTRACT_RECORDS",),
    "parts.contracts.strategies": ("strategies",),
    "parts.contracts.trainer": ("TrainerContract",),
}

__all__: list[str] = [
    "CONTRACT_RECORDS",
    "ArtifactStoreContract",
    "AuthenticatorContract",
    "BackendContract",
    "DomainStore",
    "EmbedderContract",
    "ExecutorContract",
    "LeftDomain",
    "PartContract",
    "StepTrainerContract",
    "StoreContract",
    "StoreMachine",
    "TrainerContract",
    "Trials",
    "TrialsElsewhere",
    "TrialsHere",
    "backend_client",
    "machine_over",
    "strategies",
]
