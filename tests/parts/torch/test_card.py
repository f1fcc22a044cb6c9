"""The local engine, the trainer and their benchmark on a graphics card, as far as it can be tried where there is none.

The card is emulated: `emulated_card` says what that proves and what it cannot. What is answered and learned there is
what the processor answers and learns.
"""

import importlib
import io
import json
import logging
import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from emulated_card import FREE, Card, emulated_card
from families import APART, OWN_LOGITS, SERVED, WINDOWS, build_family
from local_models import END, GREEDY, SHAPE, adapter_weights, answered, base_model, prompts, requested
from safetensors.torch import load
from torch import Tensor, nn

from modelyard import open_platform
from modelyard.domain.completion import CompletionRequest, Message, ResponseFormat, ResponseType, Role, Sampling
from modelyard.domain.training_config import RLConfig, SFTConfig
from modelyard.domain.training_run import AdamParams, AdapterConfig
from modelyard.errors import BackendError
from modelyard.parts.contracts.step_trainer import cross_entropy, flat, read, target_rows
from modelyard.parts.contracts.trainer import WORDS, Run, context_of, conversation_about, followed, rewarded
from modelyard.parts.torch import network
from modelyard.parts.torch import network as head
from modelyard.parts.torch.cuda_graphs import usual_recorder
from modelyard.parts.torch.lora import WEIGHTS_FILE, AdapterBank
from modelyard.parts.torch.network import Network
from modelyard.parts.torch.records import Tuning
from modelyard.parts.torch.serving.batching_engine import Engine
from modelyard.parts.torch.serving.grammar import Grammars
from modelyard.parts.torch.serving.model_pool import usual_device
from modelyard.parts.torch.serving.room import Room
from modelyard.parts.torch.serving.sequence import Sequence as Answer
from modelyard.parts.torch.tokenizer import ChatTokenizer
from modelyard.parts.torch.training.memory_plan import free_memory
from modelyard.parts.torch.training.token_logprobs import TokenScorer
from modelyard.parts.torch.training.trainer import LocalTrainer
from sampled import sampled

pytestmark = pytest.mark.skipif(
    torch.version.cuda is not None or not torch.__version__.startswith("2.13.") or sys.platform != "linux",
    reason="an emulation for torch 2.13 without CUDA",
)

BF16 = torch.bfloat16


@pytest.fixture(scope="module")
def card_of_all() -> Iterator[Card]:
    """The processor adds in the order of the card, whose weights are stored row by row: so both give the same bits."""
    plain = torch.backends.cuda.flash_sdp_enabled()
    torch.backends.cuda.enable_flash_sdp(False)
    with emulated_card() as card, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Network, "lay_out", lambda _: None)
        yield card
    torch.backends.cuda.enable_flash_sdp(plain)


@pytest.fixture
def card(card_of_all: Card) -> Card:
    card_of_all.waits.clear()
    return card_of_all


# ---- what the emulation refuses ------------------------------------------------------------------------------------


def ones(*shape: int, **options: Any) -> Tensor:
    return torch.ones(*shape, device="cuda", **options)


def adam_with_its_step_elsewhere() -> None:
    weight = nn.Parameter(ones(3))
    adam = torch.optim.AdamW([weight], fused=True)
    adam.state[weight] = {"step": torch.tensor(1.0), "exp_avg": ones(3), "exp_avg_sq": ones(3)}
    weight.sum().backward()
    adam.step()


REFUSED: list[Callable[[], object]] = [
    lambda: ones(3) + torch.ones(3),
    lambda: ones(2, 3) @ torch.ones(3, 2),
    lambda: torch.cat([ones(3), torch.ones(3)]),
    lambda: ones(3).masked_fill_(torch.tensor([True, False, True]), 0),
    lambda: torch.where(ones(3) > 0, ones(3), torch.zeros(3)),
    lambda: nn.functional.embedding(torch.tensor([1]), ones(3, 2)),
    lambda: torch.ones(3)[ones(1).long()],
    lambda: ones(3).gather(0, torch.tensor([1])),
    lambda: ones(3).numpy(),
    lambda: torch.mm(ones(2, 2), ones(2, 2), out_dtype=torch.float32),
    lambda: torch.mm(ones(2, 2, dtype=BF16), ones(2, 2, dtype=BF16), out_dtype=torch.float16),
    lambda: torch.cuda.mem_get_info("cpu"),
    adam_with_its_step_elsewhere,
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_a_card_refuses_is_refused(card: Card, number: int) -> None:
    with pytest.raises((RuntimeError, TypeError, ValueError, IndexError)):
        REFUSED[number]()


def test_what_a_card_takes_is_computed_in_its_memory(card: Card) -> None:
    x = torch.arange(6.0, device="cuda").view(2, 3)
    x[0] += torch.tensor(1.0)
    x[torch.tensor([1]), 2] = 9
    assert x.tolist() == [[1, 2, 3], [3, 4, 9]]
    assert (x.device.index, x.T[0].data_ptr()) == (0, x.data_ptr())
    layer = nn.Linear(3, 1, bias=False).to("cuda")
    layer(x).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.cpu().tolist() == [[4, 6, 12]]
    assert torch.isnan(torch.empty(5, device="cuda")).all()


def recorded(call: Callable[[], Tensor]) -> Any:
    new = usual_recorder(torch.device("cuda"))
    assert new is not None
    return new()(call)


@pytest.mark.parametrize("call", [lambda: ones(3).sum().item(), lambda: ones(3) + torch.ones(3).cuda()])
def test_a_recording_takes_nothing_from_elsewhere_and_one_that_fails_leaves_no_trace(
    card: Card, call: Callable[[], Tensor]
) -> None:
    with pytest.raises(RuntimeError, match=r"capturing|previous error during capture"):
        recorded(call)
    assert not torch.cuda.is_current_stream_capturing()
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_a_recording_computes_when_it_is_replayed_and_not_before(card: Card) -> None:
    x, kept = ones(3), torch.zeros(3, device="cuda")

    def call() -> Tensor:
        kept.add_(x)
        return kept * 2

    recording = recorded(call)
    assert kept.tolist() == [1, 1, 1]  # made once, to get ready
    assert recording.states.isnan().all()
    x.fill_(5)
    recording.replay()
    assert recording.states.tolist() == [12, 12, 12]


def test_a_replay_that_reads_memory_which_was_given_back_is_noticed(card: Card) -> None:
    given = {"x": ones(3)}
    recording = recorded(lambda: given["x"] * 2)
    given["x"] = ones(3)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        recording.replay()


# ---- serving -----------------------------------------------------------------------------------------------------


def engine_on(
    device: str, folder: Path, dtype: torch.dtype | None = None, unrecorded: bool = False, rows: int = 4
) -> Engine:
    served = Network(folder, device, dtype)
    served.lean = None  # a card reads with the modules: so both round alike
    recorder = None if unrecorded else usual_recorder(served.device)
    engine = Engine(served, AdapterBank(served.model, 4, 8), frozenset({END}), recorder=recorder, rows=rows)
    for slot in (1, 2):
        engine.load(slot, SHAPE, adapter_weights(folder, SHAPE, seed=slot))
    return engine


SAMPLINGS = [
    GREEDY,
    Sampling(seed=1),
    Sampling(seed=2, top_k=7),
    Sampling(seed=3, top_p=0.8, temperature=0.7),
    Sampling(seed=4, min_p=0.02),
    Sampling(seed=5, frequency_penalty=0.5, presence_penalty=0.3, repetition_penalty=1.2),
    Sampling(seed=6, logit_bias={70: 4.0, 80: -5.0}),
]


def of_every_kind(folder: Path) -> list[Answer]:
    grammars, form, drawn = (
        Grammars(ChatTokenizer(folder), 259),
        ResponseFormat(ResponseType.JSON_OBJECT),
        random.Random(0),
    )
    request = CompletionRequest("m", (Message(Role.USER, "x"),), response_format=form)
    found = [
        requested(prompt, drawn.choice([2, 5, 9]), sampling, slot=place % 3, top_logprobs=place % 4)
        for place, (prompt, sampling) in enumerate(zip(prompts(7), SAMPLINGS, strict=True))
    ]
    return [*found, requested([5, 6, 7], 9, Sampling(seed=7), grammar=grammars.of(request, None))]


def reported(engine: Engine, *answers: Answer) -> list[Any]:
    answered(engine, *answers)
    assert [one.failure for one in answers] == [None] * len(answers)
    return [
        (one.answer, [generated.logprob for generated in one.sampled], [generated.top for generated in one.sampled])
        for one in answers
    ]


@pytest.mark.parametrize(("dtype", "unrecorded"), [(torch.float32, True), (None, False)])
def test_answers_of_every_kind_are_those_of_the_processor(
    card: Card, folder: Path, dtype: torch.dtype | None, unrecorded: bool
) -> None:
    """In 16 bits the same weights give the same too, as the sums of the head are of 32 bits on both."""
    before, expected = card.replays, engine_on("cpu", folder, dtype or BF16, rows=5)
    engine = engine_on("cuda", folder, dtype, unrecorded, rows=5)
    assert engine._network.dtype is (dtype or BF16)
    assert reported(engine, *of_every_kind(folder)) == reported(expected, *of_every_kind(folder))
    wide = attrs.evolve(SHAPE, rank=8, alpha=16)
    for one in (engine, expected):
        one.load(3, wide, adapter_weights(folder, wide, seed=3))
    mixed = [requested(prompt, 4, slot=slot) for slot, prompt in enumerate(prompts(4, seed=1))]
    again = [requested(one.prompt, 4, slot=one.slot) for one in mixed]
    assert reported(engine, *mixed) == reported(expected, *again)
    assert (card.replays > before) is not unrecorded


@pytest.mark.parametrize(
    ("family", "options"),
    sampled([*SERVED[-2:], WINDOWS[0], *WINDOWS[-2:], OWN_LOGITS[2], *APART], 3),
    ids=lambda one: str(one)[:12],
)
def test_other_families_answer_as_on_the_processor(
    card: Card, folders: Callable[..., Path], tmp_path: Path, family: str, options: dict[str, Any]
) -> None:
    """Experts, windows, logits of their own; and caches of their own, in which passes are not recorded."""
    folder, _ = build_family(folders("nano"), tmp_path, family, options)
    dtype = BF16 if "num_experts_per_tok" in options else torch.float32  # a card's kernel for experts is of 16 bits
    found, before = [], card.replays
    for device in ("cuda", "cpu"):
        served = Network(folder, device, dtype)
        recorder = usual_recorder(served.device)
        engine = Engine(served, AdapterBank(served.model, 1, 8), frozenset({END}), recorder=recorder, rows=3)
        found.append(answered(engine, *(requested(prompt, 9) for prompt in prompts(4))))
    assert found[0] == found[1]
    assert (card.replays > before) == served.in_rows


def test_rows_that_grow_and_what_was_answered_before_are_those_of_the_processor(card: Card, folder: Path) -> None:
    found = []
    for device in ("cuda", "cpu"):
        engine = engine_on(device, folder, torch.float32, rows=2)
        first, second = requested([*range(10, 258)], 12), requested([5, 6], 12)
        found.append(answered(engine, first, second))
        found[-1] += answered(engine, requested([*first.prompt, *first.answer, 7], 3))
        assert engine.rows.cache.length == 512
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("sampling", "unrecorded", "copies"), [(GREEDY, False, 3), (Sampling(seed=1), False, 4), (GREEDY, True, 5)]
)
def test_a_token_waits_for_the_card_no_oftener_than_it_must(
    card: Card, folder: Path, sampling: Sampling, unrecorded: bool, copies: int
) -> None:
    """Tokens, places and adapters go there, in one copy for a recorded pass; tokens and log-probabilities come back."""
    engine = engine_on("cuda", folder, unrecorded=unrecorded)
    answers = [requested(prompt, 30, sampling, slot=slot) for slot, prompt in enumerate(prompts(3, seed=5))]
    for one in answers:
        engine.submit(one)
    engine.wait(answers[0], 2)
    before, steps = Counter(card.waits), len(answers[0].sampled)
    engine.wait(answers[0], 7)
    assert card.waits - before == {"copy_": copies * (len(answers[0].sampled) - steps)}


def test_where_a_pass_cannot_be_recorded_decoding_continues_on_the_usual_stream(
    card: Card, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine, expected = engine_on("cuda", folder, torch.float32), engine_on("cpu", folder, torch.float32)
    plain = engine._network.hidden

    def waiting(ids: Tensor, *rest: Any) -> Tensor:
        states = plain(ids, *rest)
        assert float(states.sum()) != 0
        return states

    engine._network.hidden = waiting  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING):
        assert reported(engine, requested([5, 6, 7], 5)) == reported(expected, requested([5, 6, 7], 5))
    assert "without a CUDA graph" in caplog.text
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_a_token_that_the_model_has_not_is_refused_before_the_card_fails_for_good(card: Card, folder: Path) -> None:
    engine = engine_on("cuda", folder)
    with pytest.raises(BackendError, match="token 259 of the prompt is not one of this model's 259"):
        answered(engine, requested([5, 259], 3))
    assert len(answered(engine, requested([5, 258], 3))[0]) == 3


def test_a_kernel_with_an_index_out_of_range_breaks_the_card(folder: Path, card: Card) -> None:
    """So the test before would notice it."""
    try:
        with pytest.raises(IndexError):
            ones(3, 2).index_select(0, torch.tensor([3], device="cuda"))
        with pytest.raises(RuntimeError, match="device-side assert"):
            ones(1)
    finally:
        card._broken = False


@pytest.mark.parametrize("dtype", [BF16, torch.float32])
def test_logits_of_16_bit_weights_are_sums_of_32_bits_and_their_gradients_reach_the_states(
    card: Card, dtype: torch.dtype
) -> None:
    """Of states of 32 bits too, which some families have."""
    found = []
    torch.manual_seed(0)
    layer, states = nn.Linear(64, 50, dtype=BF16).requires_grad_(False), torch.randn(2, 3, 64, dtype=dtype)
    for device in ("cpu", "cuda"):
        given = states.clone().to(device).requires_grad_()
        logits = head.logits(layer.to(device), given)
        logits.square().sum().backward()
        assert given.grad is not None
        found.append((logits.detach().cpu(), given.grad.cpu()))
    torch.testing.assert_close(*found, rtol=0, atol=0)


# ---- training ----------------------------------------------------------------------------------------------------

EXAMPLES = [conversation_about(word, f"{word[::-1]}!") for word in WORDS[:4]]
GROUPS = [rewarded(word, [1.0, 0.0]) for word in WORDS[:2]]


def trained(folder: Path, device: str, tuning: Tuning) -> list[Run]:
    """SFT, the same again from its middle with little memory, and RL with a reference."""

    def trainer(**options: Any) -> LocalTrainer:
        bases = [base_model(folder, "tiny", tuning)]
        return LocalTrainer(bases, device=device, shape=SHAPE, save_every=1, **options)

    sft, rl = SFTConfig(batch_size=2, learning_rate=1e-3), RLConfig(learning_rate=1e-3)
    whole = followed(trainer().train("sft", sft, EXAMPLES, context_of("tiny")))
    half = context_of("tiny", resume=(1, whole.states[1]))
    assert followed(trainer().train("sft", sft, EXAMPLES, half)).files == whole.files
    compared = RLConfig(learning_rate=1e-3, kl_penalty_coef=0.1, precalculate_logprobs=True)
    parents = {"parent": whole.files, "reference": whole.states[1]}
    return [
        whole,
        followed(trainer().train("rl", rl, GROUPS, context_of("tiny", **parents))),
        followed(trainer().train("rl", compared, GROUPS, context_of("tiny", **parents))),
    ]


@pytest.mark.parametrize(("tuning", "dtype"), [(Tuning.LORA, BF16), (Tuning.FULL, None)])
def test_what_is_learned_is_what_the_processor_learns(
    card: Card, folder: Path, monkeypatch: pytest.MonkeyPatch, tuning: Tuning, dtype: torch.dtype | None
) -> None:
    if dtype is not None:
        monkeypatch.setattr(network, "_usual_dtype", lambda *_: dtype)
    close = 5e-3 if dtype is BF16 else 1e-5
    for one, other in zip(trained(folder, "cuda", tuning), trained(folder, "cpu", tuning), strict=True):
        assert len(one.steps) == len(other.steps) > 0
        for step, expected in zip(one.steps, other.steps, strict=True):
            assert step.metrics == pytest.approx(expected.metrics, abs=close, rel=close)
        (file,) = [name for name in one.files if name.endswith("safetensors")]
        if dtype is not BF16:  # there AdamW makes whole steps of what is no more than rounding
            torch.testing.assert_close(dict(load(one.files[file])), dict(load(other.files[file])), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("memory", [None, 2**20])
def test_layers_are_computed_again_where_memory_is_short(
    card: Card, folder: Path, monkeypatch: pytest.MonkeyPatch, memory: int | None
) -> None:
    asked_for, plain = [], TokenScorer.logprobs

    def noted(scorer: TokenScorer, rows: Any, recomputed: bool = False, *more: Any) -> Any:
        asked_for.append(recomputed)
        return plain(scorer, rows, recomputed, *more)

    monkeypatch.setattr(TokenScorer, "logprobs", noted)
    trainer = LocalTrainer([base_model(folder, "tiny")], shape=SHAPE, memory=memory)
    run = followed(trainer.train("sft", SFTConfig(batch_size=2), EXAMPLES[:2], context_of("tiny")))
    assert all(asked_for) is (memory is not None)
    assert run.steps[0].metrics["loss"] == pytest.approx(5.6, abs=0.2)


def _none(name: str) -> io.BytesIO:
    raise AssertionError(name)


def test_runs_that_callers_drive_learn_on_the_card_what_they_learn_on_the_processor(card: Card, folder: Path) -> None:
    """Two side by side, with a changed head: a network of 16 bits, adapters and their optimizers of 32."""
    rows, found = target_rows(1, count=4), {}
    for device in ("cuda", "cpu"):
        trainer = LocalTrainer([base_model(folder, "tiny")], device=device)
        runs = [trainer.open_run("tiny", AdapterConfig(rank=4, seed=seed), frozenset(), _none) for seed in (1, 2)]
        for run in [*runs, *runs]:
            run.accumulate(rows, cross_entropy(rows))
            run.optim_step(AdamParams(learning_rate=0.01))
        assert all(weights.dtype is torch.float32 for weights in load(read(runs[0].files())[WEIGHTS_FILE]).values())
        found[device] = [-math.fsum(flat(run.score(rows))) for run in runs]
        assert found[device][0] != found[device][1]
        again = trainer.open_run(
            "tiny", AdapterConfig(), frozenset(state := read(runs[1].state())), lambda name: io.BytesIO(state[name])
        )
        assert read(again.state()) == state
    assert found["cuda"] == pytest.approx(found["cpu"], rel=0.05)


def test_a_platform_serves_and_trains_on_the_card_where_there_is_one(card: Card, folder: Path) -> None:
    assert (usual_device(), free_memory("cuda")) == ("cuda", FREE - 2**20)
    assert Room.usual("cuda") == Room(rows=256, memory=int(FREE * 0.4))
    rows = [{"messages": [{"role": "user", "content": "sea"}, {"role": "assistant", "content": "blue"}]}] * 4
    kernels = card.kernels
    with open_platform() as platform:
        platform.add_base_model(folder, id="base")
        model = platform.models.create("m", project="p", base_model="base")
        platform.training.sft(model, rows, batch_size=2, learning_rate=1e-2).wait()
        for name in ("base", "local/p/m", "local/p/m:step0"):
            answer = platform.chat.complete(model=name, messages="sea", project="p", max_tokens=3, logprobs=True)
            assert answer.usage.completion_tokens > 0
    assert card.kernels > kernels + 1000


# ---- the benchmark -----------------------------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    return importlib.import_module("gpu")


@pytest.mark.campaign  # each run makes every table without a card (test_serving_benchmarks.py)
def test_every_table_of_the_benchmark_is_made_on_the_card(
    card: Card, gpu: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = gpu.Plan(rows=(2,), prompt=8, answer=3, read=(9,), trained=(16,), rl=(1, 2, 4, 2), mixed=3)
    monkeypatch.setattr(gpu, "DRY", plan)
    monkeypatch.setattr(importlib.import_module("_gpu_serving"), "ADAPTERS", 2)
    monkeypatch.setattr(gpu, "machine", lambda _: {"bytes per s": 1e9, "operations per s": 1e9})
    report = gpu.main(["--shape", "tiny"])
    assert json.loads(capsys.readouterr().out) == report
    titles = ("right?", "decode", "prefill", "adapters", "LoRA step", "RL step")
    assert not [row for title in titles for row in report[title] if "failed" in row]
    found = {row["what"]: row["found"] - row["ideal"] for row in report["right?"]}
    assert len(found) >= 6
    assert all(abs(difference) < 1e-4 for difference in found.values())
    assert not [value for row in report["decode"] for value in row.values() if isinstance(value, str)]
    assert [row["most GB"] for row in report["LoRA step"]] == [0.0] * 4


@pytest.mark.parametrize("untied", [(), ("small",)])
def test_models_of_other_shapes_are_made_on_the_card_and_served(
    card: Card, gpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, untied: tuple[str, ...]
) -> None:
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 48, "num_attention_heads": 8}
    monkeypatch.setattr(gpu, "LAYERS", {"small": shape})
    monkeypatch.setattr(gpu, "VOCABULARY", 300)
    monkeypatch.setattr(gpu, "UNTIED", untied)
    served = Network(gpu.build(tmp_path / "model", "small", "cuda"), "cuda")
    assert (served.dtype, served.vocabulary, served.config.tie_word_embeddings) == (BF16, 300, not untied)


def test_what_the_card_can_do_is_measured(card: Card, gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On matrices of 8 by 8 instead of 8192, as a processor computes them."""
    plain = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *_, **options: plain(8, 8, **options))
    found, kernels = gpu.machine("cuda"), card.kernels
    assert all(value > 0 for value in found.values())
    assert card.waits["synchronize"] == 4
    assert kernels > 80
