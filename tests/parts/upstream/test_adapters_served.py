"""A checkpoint on a server: requested by its adapter's name, and loaded again where the server has lost it."""

import asyncio
import hashlib
import io
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import pytest

from modelyard import Pricing
from modelyard.backends import VLLM, LoraAdapters, Timeouts, UpstreamBackend, offer
from modelyard.backends.echo import EchoBackend
from modelyard.domain.completion import CompletionRequest, Message, Role
from modelyard.domain.models import Checkpoint
from modelyard.errors import BackendError
from modelyard.formats.safetensors import Tensor, write_tensors
from modelyard.parts.upstream.fake_vllm.adapters import mark_of
from modelyard.parts.upstream.fake_vllm.misbehaviour import Refuse
from modelyard.parts.upstream.fake_vllm.server import FakeVllm
from modelyard.protocols import ServedModel
from upstream_asking import text_of

BASE = "Qwen/Qwen3-8B"
OFFER = offer(BASE, context_length=1000, pricing=Pricing(), capabilities=VLLM)
ASKED = CompletionRequest(BASE, (Message(Role.USER, "hello"),), max_tokens=9, streamed=True)
WEIGHTS = b"".join(
    write_tensors({f"base_model.model.q_proj.lora_{side}.weight": Tensor("F32", (1,), b"1234") for side in "AB"})
)
CONFIG = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}
FILES = {"adapter_config.json": json.dumps(CONFIG).encode(), "adapter_model.safetensors": WEIGHTS}


def model_with(files: dict[str, bytes]) -> ServedModel:
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    kept = {name: {"artifact": name, "size": len(data), "digest": digests[name]} for name, data in files.items()}
    whole = hashlib.sha256(json.dumps(digests).encode()).hexdigest()
    checkpoint = Checkpoint("c", "m", "local", "desk", 1, datetime.now(UTC), whole, files=kept)
    return ServedModel(BASE, OFFER.entry, checkpoint, lambda name: io.BytesIO(files[name]))


TRAINED = model_with(FILES)


class Noting:
    """Adapters that are names, and a list of what became of them."""

    def __init__(self) -> None:
        self.happened: list[str] = []
        self.number = 0

    @contextmanager
    def serving(self, model: ServedModel) -> Iterator[str]:
        self.number += 1
        name = f"adapter-{self.number}"
        self.happened.append(f"serve {name}")
        try:
            yield name
        finally:
            self.happened.append(f"leave {name}")

    @asynccontextmanager
    async def aserving(self, model: ServedModel) -> AsyncIterator[str]:
        with self.serving(model) as name:
            yield name

    def lost(self, name: str) -> None:
        self.happened.append(f"lost {name}")


def ask(backend: UpstreamBackend, model: ServedModel) -> str:
    return text_of(backend.stream(ASKED, model))


def ask_on_loop(backend: UpstreamBackend, model: ServedModel) -> str:
    async def main() -> str:
        return text_of([deltas async for deltas in backend.astream(ASKED, model)])

    return asyncio.run(main())


@pytest.fixture(params=[ask, ask_on_loop], ids=["blocking", "on a loop"])
def either(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def fake() -> FakeVllm:
    return FakeVllm(EchoBackend((BASE,)))


@pytest.fixture
def url(fake: FakeVllm) -> Iterator[str]:
    with fake.serve() as url:
        yield f"{url}/v1"


def test_a_checkpoint_answers_and_is_loaded_again_after_a_restart(
    fake: FakeVllm, url: str, tmp_path: Path, either: Any
) -> None:
    adapters = LoraAdapters(url, tmp_path / "adapters")
    with UpstreamBackend(url, models=[OFFER], adapters=adapters) as backend:
        assert either(backend, TRAINED) == f"{mark_of(WEIGHTS)} hello"
        fake.restart()
        assert either(backend, TRAINED) == f"{mark_of(WEIGHTS)} hello"
        assert either(backend, ServedModel(BASE, OFFER.entry)) == "hello"


def test_the_adapter_is_held_for_as_long_as_it_answers(url: str, fake: FakeVllm, either: Any) -> None:
    adapters = Noting()
    with UpstreamBackend(url, models=[OFFER], adapters=adapters) as backend:
        with pytest.raises(BackendError, match="The model `adapter-2` does not exist"):
            either(backend, TRAINED)
    assert adapters.happened == [
        "serve adapter-1",
        "lost adapter-1",
        "serve adapter-2",
        "leave adapter-2",
        "leave adapter-1",
    ]
    assert [requested.body["model"] for requested in fake.chats] == ["adapter-1", "adapter-2"]


def test_a_missing_base_model_is_not_taken_for_a_lost_adapter(fake: FakeVllm, url: str) -> None:
    adapters = Noting()
    with UpstreamBackend(url, models=[OFFER], adapters=adapters) as backend:
        fake.plan(Refuse(404, "gone"))
        with pytest.raises(BackendError, match="gone"):
            ask(backend, ServedModel(BASE, OFFER.entry))
    assert adapters.happened == []


def test_one_adapter_is_held_through_all_attempts(fake: FakeVllm, url: str) -> None:
    fake.plan(Refuse(503), Refuse(503))
    adapters = Noting()
    timeouts = Timeouts(backoff=0.001, retries=1)
    with UpstreamBackend(url, models=[OFFER], adapters=adapters, timeouts=timeouts) as backend:
        with pytest.raises(BackendError):
            ask(backend, TRAINED)
    assert adapters.happened == ["serve adapter-1", "leave adapter-1"]


def test_without_adapters_a_checkpoint_is_refused_and_an_untouched_one_is_the_base(url: str, either: Any) -> None:
    with UpstreamBackend(url, models=[OFFER]) as backend:
        with pytest.raises(BackendError, match="without adapters for checkpoints"):
            either(backend, TRAINED)
        untouched = attrs.evolve(TRAINED, checkpoint=attrs.evolve(TRAINED.checkpoint, step=0, files={}))  # type: ignore[arg-type]
        assert either(backend, untouched) == "hello"
