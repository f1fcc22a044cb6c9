"""The tables of `gpu.py` on serving: whether it is right, decoding, prefill, adapters."""

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from itertools import count
from typing import Any

import torch
from _answering import Tokens, adapter, answered, continuous_batching, generated, in_turns, prompts

from modelyard.domain.completion import CompletionRequest, Message, ResponseFormat, ResponseType, Role, Sampling
from modelyard.parts.torch import cuda_graphs as graphs
from modelyard.parts.torch.kv_cache import bytes_per_token
from modelyard.parts.torch.lora import AdapterBank
from modelyard.parts.torch.network import Network
from modelyard.parts.torch.serving.batching_engine import Engine
from modelyard.parts.torch.serving.sequence import Sequence as Answer

Rows = Iterator[dict[str, Any]]

ADAPTERS, RANK = 8, 16


class Served:
    """A network with adapters, of which engines are made, and what a step has to read."""

    def __init__(self, bench: Any, dtype: torch.dtype | None = None) -> None:
        self.network = Network(bench.folder, bench.device, dtype)
        config, model = self.network.config, self.network.model
        self.token_bytes = bytes_per_token(config, self.network.dtype)
        embeddings = 0 if config.tie_word_embeddings else model.get_input_embeddings().weight.numel()
        self.weights = sum(one.numel() for one in model.parameters()) - embeddings
        self.weight_bytes = self.weights * self.network.dtype.itemsize
        self.adapters = [adapter(self.network, seed) for seed in range(ADAPTERS)]
        self.bank = AdapterBank(model, ADAPTERS + 1, RANK)
        self.recorder = graphs.usual_recorder(self.network.device)

    def engine(self, rows: int, tokens: int, recorded: bool = True) -> Engine:
        """For so many answers of so many tokens at once, that never end before; a quarter of the rows is kept."""
        memory = -(-4 * rows // 3 + 1) * (1 << max(8, (tokens - 1).bit_length())) * self.token_bytes
        recorder = self.recorder if recorded else None
        return Engine(self.network, self.bank, frozenset(), rows=rows, memory=memory, recorder=recorder)

    def loaded(self, engine: Engine) -> list[float]:
        """Put the adapters into their slots; returns the seconds that each took."""
        spent = []
        for slot, (shape, weights) in enumerate(self.adapters, 1):
            begun = time.perf_counter()
            engine.load(slot, shape, weights)
            if self.network.device.type == "cuda":
                torch.cuda.synchronize(self.network.device)
            spent.append(time.perf_counter() - begun)
        return spent


# ---- right? ------------------------------------------------------------------------------------------------------


def right(bench: Any) -> Rows:
    """Tokens that agree, of all: in 16 bits the shape of a batch may change one now and then, and all behind it."""
    served, tokens, requested = Served(bench), bench.plan.answer, prompts(8, 8, 24)
    engine = served.engine(8, 256)
    greedy = answered(engine, requested, tokens)
    yield _shares(
        "greedy as generate()", greedy, generated(Network(bench.folder, bench.device).model, requested, tokens)
    )
    if served.recorder is not None:
        anew = answered(served.engine(8, 256, recorded=False), requested, tokens)
        yield _shares("recorded as made anew", greedy, anew)
    seeds = [Sampling(seed=row) for row in range(len(requested))]
    alone = [answered(engine, [one], tokens, sampling=seed)[0] for one, seed in zip(requested, seeds, strict=True)]
    yield _shares("seeds in a batch as alone", answered(engine, requested, tokens, sampling=seeds), alone)
    served.loaded(engine)
    slots = [row % (ADAPTERS + 1) for row in range(len(requested))]
    apart = [answered(engine, [one], tokens, slot=slot)[0] for one, slot in zip(requested, slots, strict=True)]
    yield _shares("adapters in a batch as apart", answered(engine, requested, tokens, slot=slots), apart)
    yield from _json(bench, engine)
    del served, engine
    for dtype in dict.fromkeys([Network(bench.folder, bench.device).dtype, torch.float32]):
        yield _parity(bench, dtype)


def _shares(what: str, found: Sequence[Tokens], expected: Sequence[Tokens]) -> dict[str, Any]:
    pairs = [(a, b) for one, other in zip(found, expected, strict=True) for a, b in zip(one, other, strict=True)]
    return {"what": what, "found": sum(a == b for a, b in pairs) / len(pairs), "ideal": 1.0}


def _json(bench: Any, engine: Engine) -> Rows:
    """Answers that are kept to a schema, and are valid."""
    if find_spec("llguidance") is None:
        return
    from modelyard.parts.torch.serving.grammar import Grammars
    from modelyard.parts.torch.tokenizer import ChatTokenizer

    chat = ChatTokenizer(bench.folder)
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}, "ok": {"type": "boolean"}}}
    wanted = {**schema, "required": ["n", "ok"], "additionalProperties": False}
    form = ResponseFormat(ResponseType.JSON_SCHEMA, "s", wanted)
    request = CompletionRequest("m", (Message(Role.USER, "x"),), response_format=form)
    grammars, valid = Grammars(chat, len(chat.token_bytes)), 0
    for seed in range(4):
        answer = Answer([5, 6, 7], Sampling(seed=seed), 64, grammar=grammars.of(request, None))
        engine.submit(answer)
        engine.wait(answer, 64)
        text = b"".join(chat.token_bytes[token] for token in answer.answer)
        end = text.index(b"}") + 1  # no token ends this engine's answers
        valid += json.loads(text[:end]).keys() == {"n", "ok"}
    yield {"what": "JSON that is valid", "found": valid / 4, "ideal": 1.0}


def _parity(bench: Any, dtype: torch.dtype) -> dict[str, Any]:
    """The largest difference of a log-probability between the sampler and the trainer."""
    from modelyard.parts.torch.training.examples import TokenRow
    from modelyard.parts.torch.training.token_logprobs import TokenScorer

    served = Served(bench, dtype)
    engine, scorer, apart = served.engine(8, 256), TokenScorer(served.network), []
    answers = [Answer(prompt, Sampling(seed=n), bench.plan.answer) for n, prompt in enumerate(prompts(8, 8, 24))]
    for answer in answers:
        engine.submit(answer)
    for answer in answers:
        engine.wait(answer, answer.max_tokens)
    served.bank.select([0])
    for answer in answers:
        places = tuple(range(len(answer.prompt), answer.length))
        with torch.no_grad():
            found, _ = scorer.logprobs([TokenRow(tuple(answer.tokens), places, (None,) * len(places))])
        apart += [abs(one.logprob - other) for one, other in zip(answer.sampled, found.tolist(), strict=True)]
    what = f"log-probabilities of sampler and trainer apart, at most, {str(dtype).removeprefix('torch.')}"
    return {"what": what, "found": round(max(apart), 6), "ideal": 0.0}


# ---- decoding ----------------------------------------------------------------------------------------------------


def decode(bench: Any) -> Rows:
    """Tokens a second while so many answer at once, prompts left out."""
    served, plain, numbers = Served(bench), Network(bench.folder, bench.device).model, count()
    tokens, whole = bench.plan.answer, bench.plan.prompt + bench.plan.answer
    for rows in bench.plan.rows:

        def fresh(rows: int = rows) -> list[Tokens]:
            return prompts(rows, bench.plan.prompt, bench.plan.prompt, next(numbers))

        ways: dict[str, Callable[[], float]] = {
            "anew": lambda rows=rows: _engine_step(bench, served.engine(rows, whole, recorded=False), fresh),
            "generate()": lambda: _generate_step(bench, plain, fresh),
        }
        if served.recorder is not None:
            ways["recorded"] = lambda rows=rows: _engine_step(bench, served.engine(rows, whole), fresh)
        ways["continuous batching"] = lambda rows=rows: _theirs(plain, rows, whole, tokens, fresh)
        floor = (served.weight_bytes + rows * (whole - tokens / 2) * served.token_bytes) / bench.bytes_per_s
        yield _steps(rows, floor, {name: _tried(way) for name, way in ways.items()})


def _tried(way: Callable[[], float]) -> float | str:
    try:
        return way()
    except Exception as fault:  # noqa: BLE001 - the other ways are measured all the same
        return f"{type(fault).__name__}: {fault}"[:60]


def _steps(rows: int, floor: float, found: dict[str, float | str]) -> dict[str, Any]:
    """Tokens a second by seconds of a step; beside them what went wrong."""
    reported = {
        f"{name} tok/s": taken if isinstance(taken, str) else round(rows / taken) for name, taken in found.items()
    }
    best = found.get("recorded", found["anew"])
    static = found["generate()"]
    ratios = {} if isinstance(best, str) else {"engine / floor": round(floor / best, 3)}
    if not isinstance(best, str) and not isinstance(static, str):
        ratios["engine / generate()"] = round(static / best, 2)
    return {"rows": rows, **reported, "floor tok/s": round(rows / floor), **ratios}


def _engine_step(bench: Any, engine: Engine, fresh: Callable[[], list[Tokens]]) -> float:
    """Seconds of a step, once all have their first tokens; measured the second time."""
    spent = 0.0
    for _ in range(2):
        answers = [Answer(prompt, Sampling(temperature=0), bench.plan.answer) for prompt in fresh()]
        for answer in answers:
            engine.submit(answer)
        engine.wait(answers[0], 0)
        assert all(answer.sampled for answer in answers), "there was no room for all of them"
        bench.synchronize()
        begun, before = time.perf_counter(), len(answers[0].sampled)
        for answer in answers:
            engine.wait(answer, answer.max_tokens)
        spent = (time.perf_counter() - begun) / (bench.plan.answer - before)
    return spent


def _generate_step(bench: Any, model: Any, fresh: Callable[[], list[Tokens]]) -> float:
    """Seconds of a step of `generate()`: from the first logits to the last."""
    times: list[float] = []

    def noted(_: Any, scores: Any) -> Any:
        bench.synchronize()
        times.append(time.perf_counter())
        return scores

    for _ in range(2):
        times.clear()
        generated(model, fresh(), bench.plan.answer, logits_processor=[noted])
    return (times[-1] - times[0]) / (len(times) - 1)


def _theirs(model: Any, rows: int, whole: int, tokens: int, fresh: Callable[[], list[Tokens]]) -> float:
    """Seconds of a step of the continuous batching of transformers, by its own times, once all have a token."""
    with continuous_batching(model, rows, whole) as call:
        call(fresh(), tokens)
        times = [one.timestamps for one in call(fresh(), tokens)]
    begun = max(row[0] for row in times)
    later = [at for row in times for at in row if at > begun]
    return rows * (max(later) - begun) / len(later)


# ---- prefill, adapters -------------------------------------------------------------------------------------------


def prefill(bench: Any) -> Rows:
    """Prompts that are only read, each for the first time."""
    served = Served(bench)
    for tokens in bench.plan.read:
        engine, numbers = served.engine(1, tokens + 2), count(tokens)
        spent = bench.seconds(lambda: answered(engine, prompts(1, tokens, tokens, next(numbers)), 1), 2)  # noqa: B023 - called at once
        floor = 2 * served.weights * tokens / bench.operations_per_s
        yield {
            "tokens": tokens,
            "tok/s": round(tokens / spent),
            "floor tok/s": round(tokens / floor),
            "engine / floor": round(floor / spent, 3),
        }


def adapters(bench: Any) -> Rows:
    """The base, one adapter, and eight in one batch; and how long it takes to put one into its slot."""
    served, rows, tokens = Served(bench), bench.plan.mixed, bench.plan.answer
    engine = served.engine(rows, 256)
    requested = prompts(rows, 24, 24)
    calls = {
        "base": lambda: answered(engine, requested, tokens),
        "one adapter": lambda: answered(engine, requested, tokens, slot=1),
        "eight adapters": lambda: answered(engine, requested, tokens, slot=[1 + n % ADAPTERS for n in range(rows)]),
    }
    served.loaded(engine)
    spent = in_turns(calls, 3, time.perf_counter)
    for name, taken in spent.items():
        ratio = round(taken / spent["one adapter"], 2)
        yield {"what": name, "tok/s": round(rows * tokens / taken), "time / one adapter's": ratio}
    again = statistics.median(served.loaded(engine))
    yield {"what": "an adapter is put into its slot", "ms": round(again * 1000, 2)}


TABLES = {"right?": right, "decode": decode, "prefill": prefill, "adapters": adapters}
