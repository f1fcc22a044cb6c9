"""What was read once is read once, as long as there is memory; memory is taken when it is needed, and both are told."""

import mmap
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from local_models import TOKEN_BYTES, _loaded, alone, answered, base_model, engine_of, passes, prompts, requested

from modelyard import Pricing, open_platform
from modelyard.cli import main
from modelyard.domain.completion import Sampling
from modelyard.domain.usage import cost
from modelyard.errors import InvalidInput
from modelyard.parts.torch.kv_cache import RowCache
from modelyard.parts.torch.mapped_weights import page_out
from modelyard.parts.torch.service import ListBaseModels
from modelyard.parts.torch.serving.backend import LocalBackend
from modelyard.parts.torch.serving.room import Room

LONG = [*range(10, 250)] * 3


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("rows", [1, 2])
def test_a_long_prompt_is_read_once_where_memory_has_few_rows(folder: Path, rows: int) -> None:
    engine = engine_of(folder, memory=TOKEN_BYTES * 1024 * rows)
    first, again = requested([*LONG, 5, 6], 4), requested([*LONG, 7, 8, 9], 4)
    with passes(engine) as seen:
        answered(engine, first)
        assert seen[0] == (1, len(LONG) + 2)
        seen.clear()
        answered(engine, again)
    assert seen[0] == (1, 3)
    assert (again.reused, engine.rows.reused, engine.rows.evicted) == (len(LONG), len(LONG), 0)
    assert [first.answer, again.answer] == alone(folder, first, again)


def test_conversations_in_turns_are_kept_side_by_side_and_the_oldest_gives_way(folder: Path) -> None:
    engine = engine_of(folder, memory=TOKEN_BYTES * 1024 * 2)
    talks = [[place, *LONG] for place in (3, 4, 5)]
    for talk in (talks[0], talks[1], talks[0], talks[1]):
        answered(engine, requested(talk, 2))
    assert engine.rows.evicted == 0
    assert engine.rows.reused == 2 * len(LONG)
    third, second, first = requested(talks[2], 3), requested(talks[1], 3), requested(talks[0], 3)
    answered(engine, third)
    assert (engine.rows.evicted, third.reused) == (1, 0)
    answered(engine, second)
    assert second.reused == len(LONG)
    answered(engine, first)
    assert (engine.rows.evicted, first.reused) == (2, 0)
    assert [third.answer, second.answer, first.answer] == alone(folder, third, second, first)


def test_what_is_kept_survives_rows_that_change_their_length(folder: Path) -> None:
    engine, opening = engine_of(folder, rows=8), [*range(20, 90)]
    answered(engine, *(requested(prompt, 3) for prompt in prompts(3, seed=4)), requested(opening, 2))
    answered(engine, requested(LONG, 2))
    longer, long_again = requested([*opening, 5, 6], 3), requested([*LONG, 9], 3)
    answered(engine, longer)
    answered(engine, long_again)
    assert (longer.reused, long_again.reused) == (len(opening), len(LONG))
    assert [longer.answer, long_again.answer] == alone(folder, longer, long_again)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_kept_and_gives_way_answers_are_the_same(folder: Path, seed: int) -> None:
    drawn = random.Random(seed)
    engine = engine_of(folder, rows=4, memory=TOKEN_BYTES * 256 * drawn.choice([3, 5, 9]))
    openings = [prompt * drawn.choice([1, 2, 9]) for prompt in prompts(4, seed=seed)]
    wanted = []
    for place in range(24):
        opening = drawn.choice(openings)
        prompt = [*opening[: drawn.randint(1, len(opening))], *prompts(1, seed=place)[0]]
        wanted.append(requested(prompt, drawn.choice([1, 4, 30]), Sampling(seed=place)))
    found, rest = [], list(wanted)
    while rest:
        part, rest = rest[: (count := drawn.randint(1, 5))], rest[count:]
        if drawn.random() < 0.3:
            gone = requested(part[0].prompt, 9)
            engine.submit(gone)
            engine.wait(gone, 1)
            engine.cancel(gone)
        found += answered(engine, *part)
    assert engine.rows.reused > 0
    assert found == alone(folder, *wanted)


@torch.inference_mode()
def test_memory_is_taken_when_it_is_needed(folder: Path) -> None:
    network = _loaded(folder)
    before = resident()
    cache = RowCache(network.config, 4, 2**18, network.dtype, network.device)
    assert sum(one.nbytes for layer in cache._memory for one in layer) == 2**20 * TOKEN_BYTES
    assert resident() - before < 2**25
    network.hidden(torch.tensor([LONG]), *cache.begin(0, [0], len(LONG)), cache)
    assert 0 < resident() - before < 2**26
    for tensor in cache.keys:
        tensor[1].zero_()
    assert resident() - before > 2**25


def test_usage_says_what_was_not_read_again_and_what_it_costs(folder: Path) -> None:
    words: Any = {"model": "tiny", "messages": "a long story " * 9, "max_tokens": 4, "temperature": 0}
    with open_platform() as platform:
        platform.add_base_model(folder, id="tiny", pricing=Pricing(prompt="0.000001"))
        metrics = platform.metrics
        assert "prefix" not in metrics.text()
        first, again = platform.chat.complete(**words), platform.chat.complete(**words)
        assert (first.usage.cached_tokens, again.usage.cached_tokens) == (0, first.usage.prompt_tokens - 1)
        assert again.usage.completion_tokens == first.usage.completion_tokens == 4
        pricing = platform.catalogue.get("tiny").pricing
        assert cost(again.usage, pricing) == cost(first.usage, pricing) > 0
        text = metrics.text()
        assert f'modelyard_prefix_tokens_total{{model="tiny"}} {again.usage.cached_tokens}' in text
        assert 'modelyard_prefixes_evicted_total{model="tiny"} 0' in text


@pytest.mark.parametrize(("context", "said"), [(0.5, "a context of 512 tokens of its 1024"), (1, "one long conv")])
def test_the_log_names_the_model_and_the_memory_that_would_do(
    context: float, said: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_platform() as platform, caplog.at_level("INFO", "modelyard.engines.torch.serving"):
        platform.add_base_model(folder, id="mine")
        platform.base_models.give_memory(int(1024 * context) * TOKEN_BYTES)
        platform.chat.complete(model="mine", messages="hi", max_tokens=1)
    (line,) = (one for one in caplog.messages if "--cache-memory" in one)
    memory = -(-1024 * TOKEN_BYTES * (1 if context < 1 else 2) // 2**20)
    assert line.startswith("mine ")
    assert said in line
    assert f"--cache-memory {memory}MiB" in line


def test_the_memory_of_local_models_can_be_said(folder: Path) -> None:
    with open_platform() as platform:
        platform.base_models.give_memory(TOKEN_BYTES * 100)
        platform.add_base_model(folder, id="tiny")
        platform.chat.complete(model="tiny", messages="hi", max_tokens=1)
        assert platform.catalogue.get("tiny").context_length == 100
        with pytest.raises(InvalidInput, match="must be 1 or more"):
            platform.base_models.give_memory(0)
    with open_platform(backend=LocalBackend([base_model(folder, "tiny")])) as platform:
        with pytest.raises(InvalidInput, match="given by the host"):
            platform.base_models.give_memory(2**30)


def test_a_room_without_a_card_has_the_memory_that_was_asked_for() -> None:
    assert Room.usual("cpu", 5) == Room(memory=5)
    assert Room.usual("cpu") == Room()


def test_choices_of_one_prompt_and_reasoning_are_counted_with_what_is_known(folders: Callable[..., Path]) -> None:
    words: Any = {"model": "tiny", "messages": "several of them", "max_tokens": 5, "n": 3, "seed": 1}
    with open_platform() as platform:
        platform.add_base_model(folders(), id="tiny")
        first, again = platform.chat.complete(**words), platform.chat.complete(**words)
    assert again.usage.cached_tokens == again.usage.prompt_tokens - 1
    assert again.usage.completion_tokens == first.usage.completion_tokens


def test_a_server_takes_it_as_an_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    monkeypatch.setattr(ListBaseModels, "give_memory", lambda _, memory: given.append(memory))
    monkeypatch.setattr("modelyard.parts.server.uvicorn_server.run", lambda *_: None)
    words = ["serve", "--store", str(tmp_path / "yard.db"), "--cache-memory"]
    assert CliRunner().invoke(main, [*words, "3GiB"]).exit_code == 0
    assert CliRunner().invoke(main, [*words, "512MiB"]).exit_code == 0
    assert given == [3 * 2**30, 2**29]
    for size in ("4GB", "0GiB", "-1MiB", "lots"):
        refused = CliRunner().invoke(main, [*words, size])
        assert (refused.exit_code, "is not a size such as" in refused.output) == (2, True)


def test_pages_that_are_given_back_keep_their_values(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\x07" * 2**22)
    with (tmp_path / "file").open("r+b") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as pages:
        mapped = torch.frombuffer(pages, dtype=torch.uint8)
        for tensor in (mapped, torch.full((2**22,), 7, dtype=torch.uint8), mapped[5:9]):
            page_out(tensor)
            assert bool((tensor == 7).all())
        del mapped, tensor
