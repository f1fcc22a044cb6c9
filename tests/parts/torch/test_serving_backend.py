"""The local backend as a host has it: what it loads and when, checkpoints tuned in full, and letting go."""

import asyncio
import gc
import shutil
import threading
import weakref
from collections.abc import Callable
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from local_models import SHAPE, adapter_weights, answered, base_model, engine_of, passes, prompts, requested
from transformers import AutoModelForCausalLM

from modelyard import open_platform
from modelyard.domain.completion import CompletionRequest, Delta, Message, Role, Sampling
from modelyard.domain.models import Checkpoint
from modelyard.errors import BackendError, Overloaded, UnsupportedParameter
from modelyard.parts.torch.lora import CONFIG_FILE, WEIGHTS_FILE, tensor_bytes
from modelyard.parts.torch.network import FULL_FILE
from modelyard.parts.torch.serving import loaded_model as loaded
from modelyard.parts.torch.serving import model_pool as networks
from modelyard.parts.torch.serving.backend import LocalBackend
from modelyard.parts.torch.serving.room import Room
from modelyard.protocols import ServedModel
from polling import until

Weights = dict[str, torch.Tensor]
REQUEST = CompletionRequest(
    "m", (Message(Role.USER, "hello"),), Sampling(temperature=0), max_tokens=12, return_token_ids=True
)

EFFORT: dict[str, Any] = {"reasoning_effort": "high"}


@pytest.fixture
def backend(folder: Path) -> LocalBackend:
    return LocalBackend([base_model(folder, "tiny")], room=Room(rows=4, adapters=2, tuned=1))


def of_checkpoint(backend: LocalBackend, name: str, files: dict[str, bytes]) -> ServedModel:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    checkpoint = Checkpoint(name, "m", "local", "p", 1, now, "", files={file: {} for file in files})
    return ServedModel("tiny", backend.entries()[0], checkpoint, lambda file: BytesIO(files[file]))


def tuned_weights(folder: Path, seed: int) -> Weights:
    """All weights of the base, each changed a little."""
    drawn = torch.Generator().manual_seed(seed)
    named = AutoModelForCausalLM.from_pretrained(folder).named_parameters()
    return {name: one.detach() + torch.randn(one.shape, generator=drawn) * 0.1 for name, one in named}


def tuned(backend: LocalBackend, folder: Path, seed: int) -> ServedModel:
    return of_checkpoint(backend, f"tuned-{seed}", {FULL_FILE: tensor_bytes(tuned_weights(folder, seed))})


def adapted(backend: LocalBackend, folder: Path) -> ServedModel:
    weights = tensor_bytes(adapter_weights(folder, SHAPE, seed=1))
    return of_checkpoint(backend, "adapted", {CONFIG_FILE: SHAPE.config("tiny"), WEIGHTS_FILE: weights})


def reply(backend: LocalBackend, model: ServedModel) -> tuple[int, ...]:
    return tuple(token for delta in backend.stream(REQUEST, model) for token in delta.token_ids)


def generated(folder: Path, weights: Weights) -> tuple[int, ...]:
    """What transformers itself answers with these weights."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.load_state_dict(weights, strict=False)
    backend = LocalBackend([base_model(folder, "tiny")])
    prompt = backend._model(ServedModel("tiny", backend.entries()[0])).prompt(REQUEST)
    ids = torch.tensor([prompt])
    made = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
    return tuple(made[0, len(prompt) :].tolist())


def network_of(backend: LocalBackend, place: int | None = None) -> Any:
    kept = backend._loaded["tiny"]._networks
    engine = kept._own if place is None else kept._tuned_engines[place]
    assert engine is not None
    return engine._network.model


def test_reasoning_effort_reaches_the_chat_template_and_is_refused_where_it_has_none(
    folder: Path, tmp_path: Path
) -> None:
    knows = shutil.copytree(folder, tmp_path / "knows")
    template = knows / "chat_template.jinja"
    template.write_text("{{ reasoning_effort | default('') }}" + template.read_text())
    backend = LocalBackend([base_model(knows, "knows"), base_model(folder, "tiny")], room=Room(rows=1))
    hello = {"messages": "hello", "max_tokens": 1}
    with open_platform(backend=backend) as platform:
        plain, high = (platform.chat.complete(model="knows", **hello, **more).usage for more in ({}, EFFORT))
        assert high.prompt_tokens == plain.prompt_tokens + len("high")
        with pytest.raises(UnsupportedParameter, match="reasoning_effort: tiny does not support this; leave it out"):
            platform.chat.complete(model="tiny", **hello, **EFFORT)
    requested = [attrs.evolve(REQUEST, extras=extras) for extras in ({}, EFFORT)]
    served = ServedModel("knows", backend.entries()[0])
    assert len({backend.prompt_tokens(one, served) for one in requested}) == 2


# ---- tuned in full -----------------------------------------------------------------------------------------------


def test_a_checkpoint_tuned_in_full_answers_alongside_its_base_and_an_adapter(
    backend: LocalBackend, folder: Path
) -> None:
    base, full, adapter = ServedModel("tiny", backend.entries()[0]), tuned(backend, folder, 1), adapted(backend, folder)
    first = [reply(backend, model) for model in (base, full, adapter)]
    assert len(set(first)) == 3
    assert first[1] == generated(folder, tuned_weights(folder, 1))
    assert [reply(backend, model) for model in (base, full, adapter)] == first


def test_the_checkpoint_that_was_not_used_for_the_longest_time_makes_room(backend: LocalBackend, folder: Path) -> None:
    one, other = tuned(backend, folder, 1), tuned(backend, folder, 2)
    first = reply(backend, one)
    gone = weakref.ref(network_of(backend, 1))
    reply(backend, other)
    until(lambda: gc.collect() >= 0 and gone() is None)  # a thread may be at its last line
    assert reply(backend, one) == first


def test_a_checkpoint_in_use_stays_and_the_next_caller_is_refused_for_now(backend: LocalBackend, folder: Path) -> None:
    one = tuned(backend, folder, 1)
    with backend._model(one).start(REQUEST, one):
        with pytest.raises(Overloaded):
            reply(backend, tuned(backend, folder, 2))
        assert reply(backend, one) == generated(folder, tuned_weights(folder, 1))


def test_only_what_is_used_is_loaded(backend: LocalBackend, folder: Path) -> None:
    reply(backend, tuned(backend, folder, 1))
    assert backend._loaded["tiny"]._networks._own is None


@pytest.mark.parametrize("change", ["one less", "one more", "another shape"])
def test_weights_of_another_model_are_refused_by_name(backend: LocalBackend, folder: Path, change: str) -> None:
    weights = tuned_weights(folder, 1)
    if change == "one less":
        del weights["model.norm.weight"]
    else:
        weights["model.norm.weight" if change == "another shape" else "model.other.weight"] = torch.zeros(3)
    with pytest.raises(BackendError, match=r"another model \(for one, model\.(norm|other)\.weight"):
        reply(backend, of_checkpoint(backend, "odd", {FULL_FILE: tensor_bytes(weights)}))


# ---- loading and letting go --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("module", "name"), [(networks, "Network"), (loaded, "ChatTokenizer")])
def test_a_model_is_loaded_off_the_event_loop(
    folder: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    begun, go_on, plain = threading.Event(), threading.Event(), getattr(module, name)

    def slow(*given: Any, **options: Any) -> Any:
        begun.set()
        assert go_on.wait(60), "the event loop stands still"
        return plain(*given, **options)

    monkeypatch.setattr(module, name, slow)

    async def main() -> None:
        with open_platform() as platform:
            platform.add_base_model(folder, id="tiny")
            asking = asyncio.create_task(
                platform.chat.acomplete(model="tiny", messages="hello", max_tokens=3, temperature=0)
            )
            await asyncio.to_thread(begun.wait, 60)
            go_on.set()
            assert (await asking).usage.completion_tokens == 3

    asyncio.run(main())


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_platform_lets_go_of_its_networks_when_it_closes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, asynchronous: bool
) -> None:
    made: list[Callable[[], object]] = []
    plain = networks.Network

    def noting(*given: Any, **options: Any) -> Any:
        network = plain(*given, **options)
        made.append(weakref.ref(network.model))
        return network

    monkeypatch.setattr(networks, "Network", noting)

    async def within() -> None:
        async with platform:
            await platform.chat.acomplete(model="tiny", messages="hello", max_tokens=3, temperature=0)

    platform = open_platform()
    platform.add_base_model(folder, id="tiny")
    if asynchronous:
        asyncio.run(within())
    else:
        with platform:
            platform.chat.complete(model="tiny", messages="hello", max_tokens=3, temperature=0)
    until(lambda: gc.collect() >= 0 and [network() for network in made] == [None])  # a thread may be at its last line
    platform.close()


def test_a_closed_backend_refuses_and_what_it_was_answering_is_answered(backend: LocalBackend) -> None:
    base = ServedModel("tiny", backend.entries()[0])
    expected = reply(backend, base)
    under_way = backend.stream(attrs.evolve(REQUEST, streamed=True), base)
    first = next(under_way)
    backend.close()
    backend.close()
    assert tuple(token for delta in (first, *under_way) for token in delta.token_ids) == expected
    with pytest.raises(BackendError, match="closed"):
        reply(backend, base)


@pytest.mark.parametrize("scarce", ["from_pretrained", "zeros"])
def test_lack_of_memory_for_a_model_is_reported_and_the_next_request_is_answered(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch, scarce: str
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory.\nAdvice at length.")

    base = ServedModel("tiny", backend.entries()[0])
    with monkeypatch.context() as patch:
        patch.setattr(AutoModelForCausalLM if scarce == "from_pretrained" else torch, scarce, full)
        with pytest.raises(Overloaded, match="memory") as reported:
            reply(backend, base)
    assert "Advice" not in str(reported.value)
    assert len(reply(backend, base)) == 12


def test_a_missing_or_unreadable_folder_is_reported_without_its_path(folder: Path, tmp_path: Path) -> None:
    for missing, reported in (("tokenizer.json", "tokenizer"), (".", "is gone")):
        copy = tmp_path / "kept"
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        backend = LocalBackend([base_model(copy, "tiny")])
        shutil.rmtree(copy) if missing == "." else (copy / missing).write_text("{}")
        with pytest.raises(BackendError, match=reported) as failed:
            reply(backend, ServedModel("tiny", backend.entries()[0]))
        assert str(tmp_path) not in str(failed.value)


# ---- choices ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("on_loop", [False, True])
def test_eight_choices_read_their_prompt_once(folder: Path, streamed: bool, on_loop: bool) -> None:
    """One reads it, the other seven its last token."""
    backend = LocalBackend([base_model(folder, "tiny")])
    model = ServedModel("tiny", backend.entries()[0])
    engine = backend._model(model)._networks._base()
    request = attrs.evolve(REQUEST, sampling=Sampling(seed=1), n=8, streamed=streamed)

    async def reported() -> list[Delta]:
        return [delta async for delta in backend.astream(request, model)]

    with passes(engine) as seen:
        deltas = asyncio.run(reported()) if on_loop else list(backend.stream(request, model))
    assert {delta.index for delta in deltas} == set(range(8))
    assert seen[:2] == [(1, backend.prompt_tokens(request, model)), (7, 1)]


# ---- sharing a step ----------------------------------------------------------------------------------------------


def test_one_thread_leads_for_all_tasks_of_an_event_loop(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as they come back for the next step while one is made, which each step waits for here."""
    engine = engine_of(folder, ends=frozenset())
    came, leads = threading.Event(), []
    follow, step, leading = engine._lead.follow, engine._step, engine._leading

    def following(*given: Any) -> bool:
        led = follow(*given)
        if engine._lead.followed:
            came.set()
        return led

    def stepping() -> None:
        came.clear()
        if engine.rows.running and not engine._lead.followed:
            assert came.wait(60)
        step()

    def counting() -> Any:
        leads.append(threading.current_thread())
        return leading()

    monkeypatch.setattr(engine._lead, "follow", following)
    monkeypatch.setattr(engine, "_step", stepping)
    monkeypatch.setattr(engine, "_leading", counting)
    wanted = [requested(prompt, 20) for prompt in prompts(4)]

    async def read(answer: Any) -> None:
        for seen in range(20):
            await engine.await_(answer, seen)

    async def main() -> None:
        for one in wanted:
            engine.submit(one)
        await asyncio.gather(*map(read, wanted))

    asyncio.run(main())
    assert len(leads) == 1
    assert [one.answer for one in wanted] == answered(
        engine_of(folder, ends=frozenset()), *(requested(one.prompt, 20) for one in wanted)
    )
