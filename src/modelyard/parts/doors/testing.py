"""Names of parts in `modelyard.testing`."""

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
    from modelyard.parts.doubles.cassette.cassette import use_cassette
    from modelyard.parts.doubles.clients.httpx import HttpxTransport
    from modelyard.parts.doubles.clients.httpx2 import Httpx2Transport
    from modelyard.parts.doubles.clients.sdk_clients import (
        anthropic_client,
        async_anthropic_client,
        async_openai_client,
        openai_client,
    )
    from modelyard.parts.doubles.clients.server import served
    from modelyard.parts.doubles.faults.faults import Faults
    from modelyard.parts.doubles.faults.kinds import Cut, Disconnect, Killed, Malformed, Slow, TakenOver, Timeout
    from modelyard.parts.doubles.intercept.interception import intercept
    from modelyard.parts.doubles.network_guard import LeftLoopback, LoopbackGuard
    from modelyard.parts.doubles.requests.expectation import expect
    from modelyard.parts.doubles.requests.request_log import RequestLog, watch_requests
    from modelyard.parts.torch.tiny_model import build_tiny_model
    from modelyard.parts.upstream.fake_vllm.misbehaviour import (
        Abort,
        Break,
        CutConnection,
        FallSilent,
        Garble,
        Gate,
        Hold,
        Refuse,
    )
    from modelyard.parts.upstream.fake_vllm.server import LOAD_ADAPTER, FakeVllm
    from modelyard.parts.upstream.odd_server.answer import OddAnswer
    from modelyard.parts.upstream.odd_server.dialects import OddDialect
    from modelyard.parts.upstream.odd_server.faults import OddFault
    from modelyard.parts.upstream.odd_server.server import OddServer, odd_server
    from modelyard.parts.upstream.recording import record

HOMES = {
    "parts.contracts.part_contract": ("PartContract",),
    "parts.doubles.cassette.cassette": ("use_cassette",),
    "parts.doubles.clients.httpx": ("HttpxTransport",),
    "parts.doubles.clients.httpx2": ("Httpx2Transport",),
    "parts.doubles.clients.sdk_clients": (
        "anthropic_client",
        "async_anthropic_client",
        "async_openai_client",
        "openai_client",
    ),
    "parts.doubles.clients.server": ("served",),
    "parts.contracts.artifacts": ("ArtifactStoreContract",),
    "parts.contracts.authenticator": ("AuthenticatorContract",),
    "parts.contracts.backend": ("BackendContract",),
    "parts.contracts.backend_client": ("backend_client",),
    "parts.contracts.domain_store": ("DomainStore", "LeftDomain"),
    "parts.contracts.embedder": ("EmbedderContract",),
    "parts.contracts.executor": ("ExecutorContract",),
    "parts.contracts.executor_trials": ("Trials", "TrialsElsewhere", "TrialsHere"),
    "parts.contracts.step_trainer": ("StepTrainerContract",),
    "parts.contracts.store": ("StoreContract",),
    "parts.contracts.store_machine": ("StoreMachine", "machine_over"),
    "parts.contracts.store_values": ("CONTRACT_RECORDS",),
    "parts.contracts.strategies": ("strategies",),
    "parts.contracts.trainer": ("TrainerContract",),
    "parts.doubles.faults.faults": ("Faults",),
    "parts.doubles.faults.kinds": ("Cut", "Disconnect", "Killed", "Malformed", "Slow", "TakenOver", "Timeout"),
    "parts.doubles.intercept.interception": ("intercept",),
    "parts.doubles.network_guard": ("LeftLoopback", "LoopbackGuard"),
    "parts.doubles.requests.expectation": ("expect",),
    "parts.doubles.requests.request_log": ("RequestLog", "watch_requests"),
    "parts.upstream.recording": ("record",),
    "parts.upstream.fake_vllm.misbehaviour": (
        "Abort",
        "Break",
        "CutConnection",
        "FallSilent",
        "Garble",
        "Gate",
        "Hold",
        "Refuse",
    ),
    "parts.upstream.fake_vllm.server": ("LOAD_ADAPTER", "FakeVllm"),
    "parts.upstream.odd_server.answer": ("OddAnswer",),
    "parts.upstream.odd_server.dialects": ("OddDialect",),
    "parts.upstream.odd_server.faults": ("OddFault",),
    "parts.upstream.odd_server.server": ("OddServer", "odd_server"),
    "parts.torch.tiny_model": ("build_tiny_model",),
}

__all__: list[str] = [
    "CONTRACT_RECORDS",
    "LOAD_ADAPTER",
    "Abort",
    "ArtifactStoreContract",
    "AuthenticatorContract",
    "BackendContract",
    "Break",
    "Cut",
    "CutConnection",
    "Disconnect",
    "DomainStore",
    "EmbedderContract",
    "ExecutorContract",
    "FakeVllm",
    "FallSilent",
    "Faults",
    "Garble",
    "Gate",
    "Hold",
    "Httpx2Transport",
    "HttpxTransport",
    "Killed",
    "LeftDomain",
    "LeftLoopback",
    "LoopbackGuard",
    "Malformed",
    "OddAnswer",
    "OddDialect",
    "OddFault",
    "OddServer",
    "PartContract",
    "Refuse",
    "RequestLog",
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
    "anthropic_client",
    "async_anthropic_client",
    "async_openai_client",
    "backend_client",
    "build_tiny_model",
    "expect",
    "intercept",
    "machine_over",
    "odd_server",
    "openai_client",
    "record",
    "served",
    "strategies",
    "use_cassette",
    "watch_requests",
]
