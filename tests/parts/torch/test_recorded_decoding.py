"""Recorded passes decode as passes made each time, as requests come and go and change the room or an adapter.

The recorder replays operations on fixed memory (`tape`), as a graphics card does.
"""

import inspect
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from local_models import SHAPE, TOKEN_BYTES, adapter_weights, alone, answered, engine_of, passes, prompts, requested
from tape import Recorder

from modelyard.domain.completion import Sampling
from modelyard.parts.torch import cuda_graphs as graphs
from modelyard.parts.torch.cuda_graphs import _rounded, usual_recorder
from modelyard.parts.torch.network import Network
from modelyard.parts.torch.serving.batching_engine import Engine


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
def test_recorded_passes_give_the_answers_of_fresh_ones(
    folders: Callable[..., Path], recorder: Recorder, architecture: str
) -> None:
    folder = folders(architecture=architecture)
    drawn = random.Random(3)
    wanted = [requested(prompt, drawn.choice([1, 5, 12, 30]), Sampling(seed=n)) for n, prompt in enumerate(prompts(24))]
    engine = engine_of(folder, rows=7, recorder=lambda: recorder)
    with passes(engine) as seen:
        found = answered(engine, *wanted)
    assert found == alone(folder, *wanted)
    assert recorder.replays > 3 * recorder.made
    assert len([rows for rows, tokens in seen if tokens == 1]) <= recorder.made + 1


def test_log_probabilities_are_the_same_too(folder: Path, recorder: Recorder) -> None:
    pairs = []
    for engine in (engine_of(folder), engine_of(folder, recorder=lambda: recorder)):
        answers = [requested(prompt, 9, Sampling(seed=4), top_logprobs=2) for prompt in prompts(5)]
        answered(engine, *answers)
        pairs.append([one.logprob for answer in answers for one in answer.sampled])
    torch.testing.assert_close(*map(torch.tensor, pairs), atol=1e-5, rtol=1e-5)


def test_nothing_is_recorded_twice_and_few_shapes_are_distinguished(folder: Path, recorder: Recorder) -> None:
    engine = engine_of(folder, rows=8, recorder=lambda: recorder)
    for _ in range(3):
        for count in range(1, 9):
            answered(engine, *(requested(prompt, 4) for prompt in prompts(count, seed=count)))
    assert recorder.made == len({_rounded(count) for count in range(1, 9)}) == 6


def test_rows_that_grow_are_recorded_again(folder: Path, recorder: Recorder) -> None:
    wanted = [
        requested(prompt, 70, Sampling(seed=n)) for n, prompt in enumerate([[*range(10, 240)], [5, 6], [7] * 200])
    ]
    engine = engine_of(folder, rows=4, recorder=lambda: recorder)
    assert answered(engine, *wanted) == alone(folder, *wanted)
    assert engine.rows.cache.length == 512
    assert {shape.keys for shape in engine._passes._recorded._recordings} == {256, 384}  # type: ignore[union-attr]


def test_padding_leaves_alone_what_is_kept_of_earlier_answers(folder: Path, recorder: Recorder) -> None:
    """Five run in a recording for six: in the sixth row is what was answered before."""
    engine = engine_of(folder, rows=6, memory=TOKEN_BYTES * 256 * 8, recorder=lambda: recorder)
    kept = requested([*range(10, 90)], 6)
    answered(engine, kept)
    running = [requested(prompt, 20) for prompt in prompts(5, seed=2)]
    answered(engine, *running)
    with passes(engine) as seen:
        again = requested(kept.prompt, 6)
        answered(engine, again)
    assert again.reused == len(kept.prompt) - 1
    assert seen[0] == (1, 1)
    assert again.answer == kept.answer
    assert [one.answer for one in running] == alone(folder, *running)


def adapted(folder: Path, recorder: Recorder | None, slots: int = 4) -> Engine:
    engine = engine_of(folder, rows=8, recorder=recorder and (lambda: recorder))
    for slot in range(1, slots):
        engine.load(slot, SHAPE, adapter_weights(folder, SHAPE, seed=slot))
    return engine


@pytest.mark.parametrize("slots", [[0] * 5, [2] * 5, [0, 1, 2, 3, 1], [3, 0, 0, 0, 0], [1]])
def test_adapters_answer_as_without_recordings(folder: Path, recorder: Recorder, slots: list[int]) -> None:
    given = list(zip(prompts(len(slots)), slots, strict=True))
    found, expected = (
        answered(engine, *(requested(prompt, 8, Sampling(seed=1), slot=slot) for prompt, slot in given))
        for engine in (adapted(folder, recorder), adapted(folder, None))
    )
    assert found == expected
    assert recorder.replays


def test_one_recording_serves_whichever_adapter_all_rows_have(folder: Path, recorder: Recorder) -> None:
    engine, plain = adapted(folder, recorder), adapted(folder, None)
    for slot in (1, 2, 3, 2):
        assert answered(engine, requested([5, 6, 7], 6, slot=slot)) == answered(
            plain, requested([5, 6, 7], 6, slot=slot)
        )
    assert recorder.made == 1


def test_another_adapter_in_a_slot_is_used_at_once_also_when_it_is_wider(folder: Path, recorder: Recorder) -> None:
    wide = attrs.evolve(SHAPE, rank=8, alpha=16)
    engine = adapted(folder, recorder, slots=2)
    answered(engine, requested([5, 6, 7], 6, slot=1))
    for shape, seed in ((SHAPE, 7), (wide, 8), (SHAPE, 9)):
        made = recorder.made
        engine.load(1, shape, adapter_weights(folder, shape, seed=seed))
        fresh = engine_of(folder)
        fresh.load(1, shape, adapter_weights(folder, shape, seed=seed))
        assert answered(engine, requested([5, 6, 7], 6, slot=1)) == answered(fresh, requested([5, 6, 7], 6, slot=1))
        assert recorder.made - made == (shape is wide)


def test_what_cannot_be_recorded_is_decoded_all_the_same_and_reported_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: object) -> graphs.CapturedGraph:
        raise RuntimeError("operation not permitted when stream is capturing")

    wanted = [requested(prompt, 6, Sampling(seed=1)) for prompt in prompts(4)]
    with caplog.at_level(logging.WARNING):
        assert answered(engine_of(folder, rows=3, recorder=lambda: refuse), *wanted) == alone(folder, *wanted)
    (record,) = caplog.records
    assert "without a CUDA graph" in record.getMessage()
    assert "not permitted" in record.getMessage()


def test_recordings_are_bounded_and_the_oldest_goes(
    folder: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "MOST", 2)
    engine = engine_of(folder, rows=8, recorder=lambda: recorder)
    for count in (1, 2, 1, 3, 1, 2):
        answered(engine, *(requested(prompt, 3) for prompt in prompts(count, seed=count)))
        assert len(engine._passes._recorded._recordings) <= 2  # type: ignore[union-attr]
    assert recorder.made == 4


def test_sizes_are_rounded_up_by_half_at_most() -> None:
    for count in range(1, 3000):
        assert count <= _rounded(count) < 1.5 * count + 1
    assert sorted({_rounded(count) for count in range(1, 257)}) == [
        *(1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
    ]


def test_a_processor_records_nothing(folder: Path) -> None:
    assert usual_recorder(Network(folder).device) is None


def test_a_graph_is_recorded_aside_after_the_call_was_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch is asked for on a card, in its order; the arguments fit torch's own signatures."""
    done: list[str] = []
    streams = ["main"]

    class Stream:
        def wait_stream(self, other: object) -> None:
            done.append("waits for the main one" if other == "main" else "?")

    class Main(str):
        def wait_stream(self, other: object) -> None:
            done.append("main waits")

    @contextmanager
    def on(stream: object) -> Iterator[None]:
        streams.append("aside")
        yield
        streams.pop()

    @contextmanager
    def capture(*args: Any, **kwargs: Any) -> Iterator[None]:
        given = inspect.signature(original.__init__).bind(None, *args, **kwargs).arguments
        assert (given["pool"], type(given["stream"])) == ("pool", Stream)
        streams.append("graph")
        yield
        streams.pop()

    class Graph:
        def replay(self) -> None:
            done.append("replayed")

    original = torch.cuda.graph
    fakes = {
        "Stream": Stream,
        "CUDAGraph": Graph,
        "stream": on,
        "graph": capture,
        "device": lambda _: nullcontext(),
        "current_stream": lambda: Main("main"),
        "graph_pool_handle": lambda: "pool",
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    new = usual_recorder(torch.device("cuda"))
    assert new is not None
    recorder = new()
    result = torch.ones(3)

    def call() -> torch.Tensor:
        done.append(f"called on {streams[-1]}")
        return result

    recording = recorder(call)
    recording.replay()
    assert done == ["waits for the main one", "called on aside", "called on graph", "main waits", "replayed"]
    assert recording.states is result
