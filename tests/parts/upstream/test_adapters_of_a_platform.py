"""A platform whose models are trained here and served by a vLLM double: each checkpoint by its name."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import attrs
import pytest

from modelyard import open_platform
from modelyard.backends import VLLM, LoraAdapters, UpstreamBackend, offer
from modelyard.backends.echo import EchoBackend
from modelyard.domain.catalogue import Pricing
from modelyard.errors import BackendError
from modelyard.formats.safetensors import Tensor, read, write_tensors
from modelyard.parts.upstream.fake_vllm.adapters import mark_of
from modelyard.parts.upstream.fake_vllm.misbehaviour import Gate, Hold, Refuse
from modelyard.parts.upstream.fake_vllm.server import LOAD_ADAPTER, FakeVllm
from modelyard.platform.platform import Platform
from modelyard.protocols import Started, Step, TrainContext, Trained, TrainItem
from modelyard.testing.clock import ManualClock
from polling import until

BASE = "Qwen/Qwen3-8B"
EXAMPLE = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]}
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


class PeftTrainer:
    """Writes PEFT adapters whose weights are one more than those that it starts from."""

    def methods(self, base_model: str) -> tuple[str, ...]:
        return ("sft",) if base_model == BASE else ()

    def train(self, method, config, data, context: TrainContext) -> Iterator[TrainItem]:
        yield Started(1)
        yield Step(1, {"loss": 1.0})
        number = 1
        if WEIGHTS in context.parent_files:
            with context.parent(WEIGHTS) as file:
                number += int.from_bytes(next(iter(read(file).values())).data, "little")
        yield Trained({CONFIG: [adapter_config()], WEIGHTS: weights_of(number)}, {"loss": 1.0})


def adapter_config() -> bytes:
    return json.dumps({"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}).encode()


def weights_of(number: int) -> list[bytes]:
    half = Tensor("F32", (1,), number.to_bytes(4, "little"))
    return list(write_tensors({f"base_model.model.q_proj.lora_{side}.weight": half for side in "AB"}))


def said_by(step: int, text: str = "hello") -> str:
    """What the checkpoint of a step answers: the mark of its weights, and the base's answer."""
    return f"{mark_of(b''.join(weights_of(step)))} {text}" if step else text


@attrs.frozen
class Yard:
    """A platform with a model of three steps, its server, and the server's adapters."""

    platform: Platform
    fake: FakeVllm
    adapters: LoraAdapters

    def ask(self, step: int | str, text: str = "hello") -> str:
        return self.platform.chat.complete(model=name_of(step), messages=text).text

    async def aask(self, step: int | str) -> str:
        return (await self.platform.chat.acomplete(model=name_of(step), messages="hello")).text


def name_of(step: int | str) -> str:
    return f"local/desk/support:step{step}" if isinstance(step, int) else f"local/desk/support{step}"


@contextmanager
def yard_of(tmp_path, max_loaded: int = 8, clock=None) -> Iterator[Yard]:
    fake = FakeVllm(EchoBackend((BASE,)), api_key="key")
    model = offer(BASE, context_length=4096, pricing=Pricing(), capabilities=attrs.evolve(VLLM, trainable=True))
    with fake.serve() as url:
        adapters = LoraAdapters(url, tmp_path / "adapters", api_key="key", max_loaded=max_loaded)
        backend = UpstreamBackend(
            f"{url}/v1", "key", models=[model], adapters=adapters, clock=clock, jitter=lambda: 0.0
        )
        with backend, open_platform(backend=backend, trainers=[PeftTrainer()]) as platform:
            platform.models.create("support", project="desk", base_model=BASE)
            for _ in range(3):
                platform.training.sft("desk/support", [EXAMPLE]).result()
            yield Yard(platform, fake, adapters)


@pytest.fixture
def yard(tmp_path) -> Iterator[Yard]:
    with yard_of(tmp_path) as yard:
        yield yard


def test_every_step_answers_under_its_name_with_its_own_weights(yard):
    assert [yard.ask(step) for step in (0, 1, 2, 3, "", ":latest")] == [said_by(step) for step in (0, 1, 2, 3, 3, 3)]
    assert len(yard.fake.requests_to(LOAD_ADAPTER)) == 3


def test_every_step_answers_on_an_event_loop_too_however_many_ask(yard):
    async def ask_all() -> list[str]:
        return await asyncio.gather(*(yard.aask(at % 4) for at in range(24)))

    assert asyncio.run(ask_all()) == [said_by(at % 4) for at in range(24)]
    assert len(yard.fake.requests_to(LOAD_ADAPTER)) == 3


def test_a_stream_is_booked_under_the_checkpoint_that_answered(yard):
    with yard.platform.chat.stream(model=name_of(2), messages="one two three") as deltas:
        text = "".join(delta.text for delta in deltas)
    assert text == said_by(2, "one two three")
    (entry,) = yard.platform.usage.list().page().items
    assert (entry.model, entry.checkpoint_step, entry.completion_tokens) == ("local/desk/support", 2, 4)


def test_beyond_the_cap_steps_take_turns(tmp_path):
    with yard_of(tmp_path, max_loaded=2) as yard:
        for step in (1, 2, 3, 1, 2):
            assert yard.ask(step) == said_by(step)
            assert len(yard.fake.adapters) <= 2
        assert len(yard.fake.requests_to(LOAD_ADAPTER)) == 5
        assert yard.fake.unloaded_in_use == []


def test_a_restart_is_not_noticed_by_those_who_ask_next(yard):
    yard.ask(1), yard.ask(2)
    yard.fake.restart()
    assert yard.ask(1) == said_by(1)
    assert asyncio.run(yard.aask(2)) == said_by(2)
    assert len(yard.fake.requests_to(LOAD_ADAPTER)) == 4


def test_many_who_find_their_adapter_gone_load_it_once(yard):
    yard.ask(1)
    yard.fake.restart()

    async def ask_all() -> list[str]:
        return await asyncio.gather(*(yard.aask(1) for _ in range(16)))

    assert asyncio.run(ask_all()) == [said_by(1)] * 16
    assert len(yard.fake.requests_to(LOAD_ADAPTER)) == 2


def test_a_restart_in_the_midst_of_an_answer_breaks_that_one_alone(yard):
    gate = Gate()
    yard.fake.plan(Hold(gate, after=2))
    with yard.platform.chat.stream(model=name_of(1), messages="hello") as deltas:
        assert next(deltas).text
        gate.reached()
        yard.fake.restart()
        with pytest.raises(BackendError):
            list(deltas)
    assert yard.ask(1) == said_by(1)


def test_an_adapter_in_use_drains_before_another_takes_its_place(tmp_path):
    with yard_of(tmp_path, max_loaded=1) as yard, ThreadPoolExecutor(2) as pool:
        gate = Gate()
        yard.fake.plan(Hold(gate))
        first = pool.submit(yard.ask, 1)
        gate.reached()
        second = pool.submit(yard.ask, 2)
        until(lambda: bool(yard.adapters._slots.waiting))
        assert len(yard.fake.adapters) == 1
        gate.open()
        assert (first.result(), second.result()) == (said_by(1), said_by(2))
        assert yard.fake.unloaded_in_use == []


def test_who_tries_again_does_not_wait_for_themselves_while_their_adapter_drains(tmp_path):
    clock = ManualClock()
    with yard_of(tmp_path, max_loaded=1, clock=clock) as yard, ThreadPoolExecutor(2) as pool:
        yard.fake.plan(Refuse(503))
        first = pool.submit(yard.ask, 1)
        until(lambda: any(requested.status == 503 for requested in yard.fake.chats))
        second = pool.submit(yard.ask, 2)
        until(lambda: any(slot.draining for slot in yard.adapters._slots.slots.values()))
        until(partial(moved_on, clock, first.done))
        assert (first.result(), second.result()) == (said_by(1), said_by(2))


def test_deleted_adapters_are_unloaded_on_request_of_the_host(yard, tmp_path):
    for step in (1, 2, 3):
        yard.ask(step)
    model = yard.platform.models.list().page().items[0]
    yard.platform.models.delete_checkpoints(model.id, [1, 2])
    kept = [yard.platform.catalogue.resolve(name_of(3))]
    yard.adapters.reconcile(kept)
    assert len(yard.fake.adapters) == len(list((tmp_path / "adapters").iterdir())) == 1
    assert yard.ask(3) == said_by(3)
    assert len(yard.fake.requests_to(LOAD_ADAPTER)) == 3


def moved_on(clock: ManualClock, done) -> bool:
    clock.advance(0.1)
    return done()
