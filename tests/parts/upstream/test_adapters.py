"""LoRA adapters against the double of a vLLM server: what is loaded there, when, and what happens when it fails."""

import asyncio
import hashlib
import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import httpx
import pytest

from modelyard.backends import LoraAdapters
from modelyard.backends.echo import EchoBackend
from modelyard.domain.models import Checkpoint
from modelyard.errors import ArtifactMissing, BackendError, InvalidInput, Overloaded
from modelyard.formats.safetensors import Tensor, write_tensors
from modelyard.parts.upstream.adapters.files import adapter_name
from modelyard.parts.upstream.fake_vllm.adapters import mark_of
from modelyard.parts.upstream.fake_vllm.misbehaviour import CutConnection, Gate, Hold, Refuse
from modelyard.parts.upstream.fake_vllm.server import CHAT, LOAD_ADAPTER, MODELS, UNLOAD_ADAPTER, FakeVllm
from modelyard.protocols import ServedModel
from modelyard.testing.clock import ManualClock
from polling import until

BASE = "Qwen/Qwen3-8B"
BACKEND = EchoBackend((BASE,))


@pytest.fixture
def fake() -> FakeVllm:
    return FakeVllm(BACKEND)


@pytest.fixture
def url(fake) -> Iterator[str]:
    with fake.serve() as url:
        yield url


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "adapters"


@pytest.fixture(params=["blocking", "on a loop"])
def serve(request):
    """Serve models one after another; the names under which the server answers with them."""

    async def aserve(adapters, *models):
        names = []
        for model in models:
            async with adapters.aserving(model) as name:
                names.append(name)
        return names

    def serve(adapters, *models):
        if request.param == "on a loop":
            return asyncio.run(aserve(adapters, *models))
        names = []
        for model in models:
            with adapters.serving(model) as name:
                names.append(name)
        return names

    return serve


def weights_of(number: int) -> bytes:
    half = Tensor("F32", (1,), number.to_bytes(4, "little"))
    return b"".join(write_tensors({f"base_model.model.q_proj.lora_{side}.weight": half for side in "AB"}))


def model_of(number: int) -> ServedModel:
    """A trained model whose adapter is made of a number."""
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}
    return model_with(
        {"adapter_config.json": json.dumps(config).encode(), "adapter_model.safetensors": weights_of(number)}
    )


def model_with(files: dict[str, bytes], digest: str | None = None, **opened: bytes) -> ServedModel:
    """A trained model with these files; `opened` are other bytes than its digests say."""
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    kept = {name: {"artifact": name, "size": len(files[name]), "digest": digests[name]} for name in files}
    whole = digest or hashlib.sha256(json.dumps(digests).encode()).hexdigest()
    checkpoint = Checkpoint("c", "m", "local", "desk", 1, datetime.now(UTC), whole, files=kept)
    return ServedModel(BASE, BACKEND.entries()[0], checkpoint, lambda name: io.BytesIO(opened.get(name, files[name])))


def name_of(model: ServedModel) -> str:
    return adapter_name(model.checkpoint)


def ask(url: str, name: str) -> httpx.Response:
    body = {"model": name, "messages": [{"role": "user", "content": "hello"}]}
    return httpx.post(url + CHAT, json=body, timeout=60)


class TestServing:
    def test_an_adapter_is_loaded_once_and_answers_with_its_own_weights(self, fake, url, folder, serve):
        adapters = LoraAdapters(url, folder)
        names = serve(adapters, model_of(1), model_of(2), model_of(1))
        assert names[0] == names[2] != names[1]
        assert [requested.body["lora_name"] for requested in fake.requests_to(LOAD_ADAPTER)] == names[:2]
        for number, name in enumerate(names[:2], start=1):
            generated = ask(url, name).json()["choices"][0]["message"]["content"]
            assert generated == f"{mark_of(weights_of(number))} hello"

    def test_beyond_the_cap_the_least_recently_used_goes_and_its_files_with_it(self, fake, url, folder, serve):
        adapters = LoraAdapters(url, folder, max_loaded=2)
        first, second, third = serve(adapters, model_of(1), model_of(2), model_of(1), model_of(3))[1:]
        assert set(fake.adapters) == {second, third}
        assert {path.name for path in folder.iterdir()} == {second, third}
        assert first not in fake.adapters
        assert adapters.loaded == (second, third)

    def test_a_model_without_checkpoints_is_its_base(self, fake, url, folder, serve):
        untouched = model_with({})
        assert serve(LoraAdapters(url, folder), untouched, ServedModel(BASE, BACKEND.entries()[0])) == [BASE, BASE]
        assert fake.requests == []

    def test_the_folder_may_have_another_path_at_the_server(self, fake, url, folder, tmp_path, serve):
        (tmp_path / "mount").symlink_to(folder)
        adapters = LoraAdapters(url + "/v1/", folder, path_seen_by_server=f"{tmp_path}/mount/")
        (name,) = serve(adapters, model_of(1))
        assert fake.adapters[name].path == f"{tmp_path}/mount/{name}"

    def test_a_key_is_sent_and_shown_nowhere(self, folder, serve):
        fake = FakeVllm(BACKEND, api_key="secret-key")
        with fake.serve() as url:
            adapters = LoraAdapters(url, folder, api_key="secret-key")
            assert serve(adapters, model_of(1)) == list(fake.adapters)
            assert "secret-key" not in repr(vars(adapters))
            with pytest.raises(BackendError, match="401; give its api_key"):
                serve(LoraAdapters(url, folder, api_key="wrong"), model_of(1))

    def test_room_for_none_is_refused(self, folder):
        with pytest.raises(InvalidInput, match="at least 1"):
            LoraAdapters("http://localhost", folder, max_loaded=0)

    @pytest.mark.parametrize(
        ("url", "key", "says"),
        [("http://me:secret@x", None, "url: must be like"), ("http://x/v1", "secret\n", "api_key: must be visible")],
    )
    def test_an_address_or_a_key_that_is_none_is_refused_without_repeating_it(self, folder, url, key, says):
        with pytest.raises(InvalidInput, match=says) as refused:
            LoraAdapters(url, folder, api_key=key)
        assert "secret" not in str(refused.value)


class TestManyAtOnce:
    def test_threads_that_ask_first_together_load_once(self, fake, url, folder):
        adapters, gate, model = LoraAdapters(url, folder), Gate(), model_of(1)
        fake.plan(Hold(gate), path=LOAD_ADAPTER)

        def use() -> int:
            with adapters.serving(model) as name:
                return ask(url, name).status_code

        with ThreadPoolExecutor(8) as pool:
            asking = [pool.submit(use) for _ in range(8)]
            gate.reached()
            gate.open()
            assert [one.result() for one in asking] == [200] * 8
        assert len(fake.requests_to(LOAD_ADAPTER)) == 1

    def test_tasks_that_ask_first_together_load_once(self, fake, url, folder):
        adapters, model = LoraAdapters(url, folder), model_of(1)

        async def use() -> str:
            async with adapters.aserving(model) as name:
                return name

        async def all_of_them() -> list[str]:
            return await asyncio.gather(*(use() for _ in range(32)))

        assert set(asyncio.run(all_of_them())) == set(fake.adapters)
        assert len(fake.requests_to(LOAD_ADAPTER)) == 1

    def test_threads_and_loops_share_slots_and_all_are_served(self, fake, url, folder):
        adapters = LoraAdapters(url, folder, max_loaded=2)

        def blocking(number: int) -> int:
            with adapters.serving(model_of(number)) as name:
                return ask(url, name).status_code

        async def on_a_loop() -> list[int]:
            async with httpx.AsyncClient() as client:
                return await asyncio.gather(*(one(client, number % 5) for number in range(10)))

        async def one(client: httpx.AsyncClient, number: int) -> int:
            async with adapters.aserving(model_of(number)) as name:
                body = {"model": name, "messages": [{"role": "user", "content": "hello"}]}
                return (await client.post(url + CHAT, json=body, timeout=60)).status_code

        with ThreadPoolExecutor(5) as pool:
            loop = pool.submit(asyncio.run, on_a_loop())
            statuses = [*pool.map(blocking, [number % 5 for number in range(10)]), *loop.result()]
        assert statuses == [200] * 20
        assert fake.unloaded_in_use == []
        assert len(fake.adapters) <= 2

    def test_a_task_that_is_cancelled_while_it_loads_leaves_the_others_served(self, fake, url, folder):
        adapters, gate, model = LoraAdapters(url, folder), Gate(), model_of(1)
        fake.plan(Hold(gate), path=LOAD_ADAPTER)

        async def use() -> str:
            async with adapters.aserving(model) as name:
                return name

        async def cancel_the_first() -> str:
            first, second = asyncio.create_task(use()), asyncio.create_task(use())
            await asyncio.to_thread(gate.reached)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            return await second

        assert asyncio.run(cancel_the_first()) in fake.adapters


class TestDraining:
    def test_one_in_use_stays_until_its_user_has_gone(self, fake, url, folder):
        adapters = LoraAdapters(url, folder, max_loaded=1)
        with ThreadPoolExecutor(1) as pool:
            with adapters.serving(model_of(1)) as used:
                other = pool.submit(partial(served_once, adapters, model_of(2)))
                until(lambda: any(slot.draining for slot in adapters._slots.slots.values()))
                assert list(fake.adapters) == [used]
            assert other.result() in fake.adapters
        assert list(fake.adapters) == [name_of(model_of(2))]
        assert fake.unloaded_in_use == []

    def test_waiting_too_long_for_room_raises_overloaded(self, url, folder):
        clock = ManualClock()
        adapters = LoraAdapters(url, folder, max_loaded=1, patience=5, clock=clock)
        with ThreadPoolExecutor(1) as pool, adapters.serving(model_of(1)):
            other = pool.submit(partial(served_once, adapters, model_of(2)))
            until(lambda: bool(adapters._slots.waiting))
            clock.advance(6)
            with pytest.raises(Overloaded, match=r"within 5 seconds: all 1 are in use"):
                other.result()

    def test_waiting_too_long_on_a_loop_raises_too(self, url, folder):
        clock = ManualClock()
        adapters = LoraAdapters(url, folder, max_loaded=1, patience=5, clock=clock)

        async def wait_in_vain() -> None:
            async with adapters.aserving(model_of(1)):
                other = asyncio.create_task(adapters.aserving(model_of(2)).__aenter__())
                while not other.done():
                    await clock.aadvance(1)
                    await asyncio.sleep(0)
                with pytest.raises(Overloaded):
                    await other

        asyncio.run(wait_in_vain())
        assert served_once(adapters, model_of(2)) == name_of(model_of(2))


class TestRestarts:
    def test_after_a_restart_it_is_loaded_again_by_the_first_who_notices(self, fake, url, folder, serve):
        adapters = LoraAdapters(url, folder)
        names = serve(adapters, model_of(1), model_of(2))
        fake.restart()
        with adapters.serving(model_of(1)) as name:
            assert ask(url, name).status_code == 404
            adapters.lost(name)
            (again,) = serve(adapters, model_of(1))
            assert ask(url, again).status_code == 200
        assert list(fake.adapters) == names[:1]
        assert adapters.loaded == (names[0],)

    def test_one_that_a_restart_has_unloaded_makes_room_without_anybody_noticing(self, fake, url, folder, serve):
        adapters = LoraAdapters(url, folder, max_loaded=1)
        serve(adapters, model_of(1))
        fake.restart()
        assert serve(adapters, model_of(2)) == list(fake.adapters)
        assert [requested.status for requested in fake.requests_to(UNLOAD_ADAPTER)] == [404]

    def test_a_false_alarm_costs_one_look_and_no_loading(self, fake, url, folder, serve):
        adapters = LoraAdapters(url, folder)
        (name,) = serve(adapters, model_of(1))
        before = len(fake.requests)
        adapters.lost(name)
        adapters.lost(name)
        serve(adapters, model_of(1), model_of(1))
        assert [requested.path for requested in fake.requests[before:]] == [MODELS]

    def test_what_an_earlier_life_left_is_found_and_goes_first(self, fake, url, folder, tmp_path, serve):
        left = serve(LoraAdapters(url, tmp_path / "earlier"), model_of(1), model_of(2), model_of(3))
        adapters = LoraAdapters(url, folder, max_loaded=2)
        names = serve(adapters, model_of(4), model_of(3))
        assert set(fake.adapters) == set(names)
        assert names[1] == left[2]
        assert fake.adapters[left[2]].path == f"{folder}/{left[2]}"

    def test_what_an_earlier_life_left_in_the_same_folder_is_taken_over(self, fake, url, folder, serve):
        (name,) = serve(LoraAdapters(url, folder), model_of(1))
        assert serve(LoraAdapters(url, folder), model_of(1)) == [name]
        assert fake.requests_to(UNLOAD_ADAPTER) == []


class TestReconciling:
    def test_what_is_wanted_is_loaded_and_the_rest_goes_with_its_files(self, fake, url, folder, tmp_path, serve):
        adapters = LoraAdapters(url, folder)
        old, kept = serve(adapters, model_of(1), model_of(2))
        (stray := folder / f".{old}.0123456789abcdef").mkdir()
        (foreign := folder / "notes").mkdir()
        adapters.reconcile([model_of(2), model_of(3), model_with({})])
        assert list(fake.adapters) == [kept, name_of(model_of(3))]
        assert {path.name for path in folder.iterdir()} == {kept, name_of(model_of(3)), foreign.name}
        assert not stray.exists()

    def test_no_more_are_loaded_than_there_is_room_for(self, fake, url, folder):
        adapters = LoraAdapters(url, folder, max_loaded=2)
        asyncio.run(adapters.areconcile(model_of(number) for number in range(4)))
        assert list(fake.adapters) == [name_of(model_of(0)), name_of(model_of(1))]

    def test_it_notices_a_restart(self, fake, url, folder, serve):
        adapters = LoraAdapters(url, folder)
        names = serve(adapters, model_of(1))
        fake.restart()
        adapters.reconcile([model_of(1)])
        assert list(fake.adapters) == names

    def test_adapters_of_others_are_left_alone(self, fake, url, folder, tmp_path):
        foreign = tmp_path / "foreign"
        LoraAdapters(url, tmp_path)._materialise(model_of(9))
        (tmp_path / name_of(model_of(9))).rename(foreign)
        httpx.post(
            url + LOAD_ADAPTER, json={"lora_name": "modelyard-of-another-kind", "lora_path": str(foreign)}, timeout=60
        )
        LoraAdapters(url, folder).reconcile([])
        assert list(fake.adapters) == ["modelyard-of-another-kind"]

    def test_what_is_in_use_goes_when_it_is_so_no_more(self, fake, url, folder, serve):
        clock = ManualClock()
        adapters = LoraAdapters(url, folder, patience=5, clock=clock)
        with ThreadPoolExecutor(1) as pool, adapters.serving(model_of(1)) as used:
            reconciling = pool.submit(adapters.reconcile, [])
            until(lambda: bool(adapters._slots.waiting))
            clock.advance(6)
            reconciling.result()
            assert list(fake.adapters) == [used]
        assert (folder / used).is_dir()
        serve(adapters, model_of(2))
        assert list(fake.adapters) == [name_of(model_of(2))]


class TestRefusals:
    def test_every_waiting_caller_gets_the_reason_of_the_server(self, url, folder):
        config = {"r": 64, "lora_alpha": 16, "target_modules": ["q_proj"]}
        files = {"adapter_config.json": json.dumps(config).encode(), "adapter_model.safetensors": weights_of(1)}
        adapters, model = LoraAdapters(url, folder), model_with(files)
        with ThreadPoolExecutor(4) as pool:
            asking = [pool.submit(partial(served_once, adapters, model)) for _ in range(4)]
            for one in asking:
                with pytest.raises(BackendError, match="LoRA rank 64 is greater than max_lora_rank 16"):
                    one.result()

    def test_reasons_of_older_releases_are_read_too(self, folder):
        fake = FakeVllm(BACKEND, old_errors=True, max_lora_rank=4)
        with fake.serve() as url, pytest.raises(BackendError, match=r"status 400.*LoRA rank 8 is greater"):
            served_once(LoraAdapters(url, folder), model_of(1))

    def test_a_folder_that_the_server_does_not_see_is_explained(self, url, folder):
        adapters = LoraAdapters(url, folder, path_seen_by_server="/elsewhere")
        with pytest.raises(BackendError, match=r"set path_seen_by_server.*No adapter found"):
            served_once(adapters, model_of(1))

    def test_a_server_that_takes_no_adapters_is_explained(self, folder):
        with FakeVllm(BACKEND, lora=False).serve() as url, pytest.raises(BackendError, match="--enable-lora"):
            served_once(LoraAdapters(url, folder), model_of(1))

    @pytest.mark.parametrize("path", [MODELS, LOAD_ADAPTER])
    def test_a_server_that_dies_is_an_error_and_the_next_request_goes_well(self, fake, url, folder, serve, path):
        adapters = LoraAdapters(url, folder)
        fake.plan(CutConnection(), path=path)
        with pytest.raises(BackendError, match="did not answer"):
            serve(adapters, model_of(1))
        assert serve(adapters, model_of(1)) == list(fake.adapters)

    def test_a_load_whose_answer_is_lost_is_found_out_about(self, fake, url, folder, serve):
        adapters = LoraAdapters(url, folder, max_loaded=1)
        adapters._materialise(model_of(1))
        name = name_of(model_of(1))
        httpx.post(url + LOAD_ADAPTER, json={"lora_name": name, "lora_path": f"{folder}/{name}"}, timeout=60)
        fake.plan(CutConnection(), path=LOAD_ADAPTER)
        with pytest.raises(BackendError):
            serve(adapters, model_of(1))
        assert serve(adapters, model_of(2)) == list(fake.adapters)

    def test_an_unloading_that_fails_is_an_error_and_is_tried_again(self, fake, url, folder, serve):
        adapters = LoraAdapters(url, folder, max_loaded=1)
        serve(adapters, model_of(1))
        fake.plan(Refuse(500), path=UNLOAD_ADAPTER)
        with pytest.raises(BackendError, match=f"refused {UNLOAD_ADAPTER} with status 500"):
            serve(adapters, model_of(2))
        assert serve(adapters, model_of(2)) == list(fake.adapters)

    def test_a_list_that_is_none_is_an_error(self, folder):
        fake = FakeVllm(BACKEND)
        fake._answer = lambda exchange: exchange.answer_json({"data": 1})
        with fake.serve() as url, pytest.raises(BackendError, match="is not a list of models"):
            served_once(LoraAdapters(url, folder), model_of(1))


class TestFiles:
    def test_a_checkpoint_that_is_not_an_adapter_is_explained(self, fake, url, folder, serve):
        with pytest.raises(BackendError, match=r"no adapter_config\.json and no adapter_model\.safetensors"):
            serve(LoraAdapters(url, folder), model_with({"adapter.safetensors": b"tabular"}))
        assert fake.requests_to(LOAD_ADAPTER) == []

    def test_bytes_that_do_not_match_their_digest_are_never_loaded(self, fake, url, folder):
        files = {"adapter_config.json": b"{}", "adapter_model.safetensors": weights_of(1)}
        altered = model_with(files, **{"adapter_model.safetensors": weights_of(2)})
        with pytest.raises(ArtifactMissing, match=r"adapter_model\.safetensors .* no longer has its digest"):
            served_once(LoraAdapters(url, folder), altered)
        assert list(folder.iterdir()) == []
        assert fake.requests_to(LOAD_ADAPTER) == []

    def test_a_folder_that_was_left_broken_is_written_again(self, fake, url, folder, serve):
        name = name_of(model_of(1))
        (folder / name).mkdir(parents=True)
        (folder / name / "adapter_model.safetensors").write_bytes(b"half")
        assert serve(LoraAdapters(url, folder), model_of(1)) == [name]
        assert (folder / name / "adapter_model.safetensors").read_bytes() == weights_of(1)

    def test_a_digest_that_looks_like_a_path_stays_in_the_folder(self, url, folder, tmp_path, serve):
        files = {"adapter_config.json": model_file("adapter_config.json"), "adapter_model.safetensors": weights_of(1)}
        serve(LoraAdapters(url, folder), model_with(files, digest="../../outside"))
        assert [path.name for path in tmp_path.iterdir()] == ["adapters"]

    def test_a_folder_that_cannot_be_written_is_an_error_of_the_backend(self, url, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(BackendError, match="cannot be written: "):
            served_once(LoraAdapters(url, tmp_path / "file" / "adapters"), model_of(1))


def model_file(name: str) -> bytes:
    return model_of(1).open_file(name).read()


def served_once(adapters: LoraAdapters, model: ServedModel) -> str:
    with adapters.serving(model) as name:
        return name
