"""Serving a tiny local model, as JSON: python benchmarks/local_serving.py [--size mini] [--rounds 3]. Needs torch.

One thread; CPU time throughout. Everything compared is measured in turns within one run and answers the same tokens,
which is checked. Arrivals are replayed on the CPU clock: a request has come when that much CPU time has been used.
"""

import argparse
import json
import platform
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

ROWS = (1, 8, 32)
TOKENS = 64
LENGTHS = (8, 16, 32, 128)
"""Of answers under Poisson arrivals, equally likely."""

ADAPTERS = 8

SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "head_dim", "num_key_value_heads")
LINEAR = {
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}


def main() -> None:
    """Print the figures."""
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("--size", default="mini", choices=("nano", "micro", "mini"))
    words.add_argument("--rounds", default=3, type=int)
    requested = words.parse_args()
    if find_spec("torch") is None:
        print(json.dumps({"left out": "torch is not installed: pip install 'modelyard[torch]'"}))
        return
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(figures(Path(folder), requested.size, requested.rounds), indent=2))


def figures(folder: Path, size: str, rounds: int) -> dict[str, Any]:
    """All of them."""
    import torch
    import transformers

    from modelyard.parts.torch.tiny_model import build_tiny_model

    torch.set_num_threads(1)
    model = build_tiny_model(folder / "model", size)
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "model": size,
        "decode": decode(model, rounds),
        "caches of their own": own_caches(model, folder / "hybrid", rounds),
        "arrivals": arrivals(model, 40 * rounds),
        "adapters": adapters(model, folder, rounds),
        "JSON mode": json_mode(model, rounds),
        "memory": memory(model),
        "platform": through_the_platform(model, folder, rounds),
    }


def tokens_per_second(spent: dict[str, float], tokens: int) -> dict[str, float]:
    return {f"{name}, tokens per CPU s": round(tokens / seconds) for name, seconds in spent.items()}


# ---- decoding ----------------------------------------------------------------------------------------------------


def decode(model: Path, rounds: int) -> dict[str, Any]:
    """Answers of 64 tokens to so many prompts of one length at once, greedy; sampled beside it."""
    from _answering import continuous_batching, engine_of

    from modelyard.parts.torch.network import Network

    engine, plain = engine_of(Network(model), max(ROWS)), Network(model).model
    with continuous_batching(Network(model).model, max(ROWS), 24 + TOKENS) as continuous:
        return {f"{rows} at once": _decoded(rows, engine, plain, continuous, rounds) for rows in ROWS}


def _decoded(rows: int, engine: Any, plain: Any, continuous: Any, rounds: int) -> dict[str, float]:
    from _answering import answered, generated, in_turns, prompts

    from modelyard.domain.completion import Sampling

    numbers = count()
    fresh = lambda: prompts(rows, 24, 24, next(numbers))  # noqa: E731 - never seen, so that nothing is known of them
    requested = fresh()
    expected = generated(plain, requested, TOKENS)
    assert answered(engine, requested, TOKENS) == expected
    assert [list(one.generated_tokens) for one in continuous(requested, TOKENS)] == expected
    theirs = "continuous batching of transformers"
    spent = in_turns(
        {
            "engine": lambda: answered(engine, fresh(), TOKENS),
            "generate()": lambda: generated(plain, fresh(), TOKENS),
            "engine, sampled": lambda: answered(engine, fresh(), TOKENS, sampling=Sampling(seed=1)),
            theirs: lambda: continuous(fresh(), TOKENS),
        },
        rounds,
        time.process_time,
    )
    return {
        **tokens_per_second(spent, rows * TOKENS),
        "engine / generate(), target 1": ratio(spent["generate()"], spent["engine"]),
        "engine / continuous batching": ratio(spent[theirs], spent["engine"]),
    }


def own_caches(model: Path, folder: Path, rounds: int) -> dict[str, Any]:
    """The same with a model most of whose layers keep a state in the place of keys: with the caches of all sequences
    joined and a pass for all, as is usual, and with a cache and a pass for each.
    """
    from _answering import answered, engine_of, generated, in_turns, prompts
    from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

    from modelyard.parts.torch.network import Network

    if "qwen3_5_text" not in CONFIG_MAPPING:
        return {"left out": "this transformers has no such model"}
    shutil.copytree(model, folder)
    known = json.loads((model / "config.json").read_text())
    sizes = {**{name: known[name] for name in SIZES}, **LINEAR, "num_hidden_layers": 4}
    AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3_5_text", **sizes)).save_pretrained(folder)
    together, apart = Network(folder), Network(folder)
    apart.can_batch = False
    engines = {"a pass for all": engine_of(together, max(ROWS)), "a pass for each": engine_of(apart, max(ROWS))}
    found: dict[str, Any] = {}
    for rows, shortest, longest in [*((rows, 24, 24) for rows in ROWS), (max(ROWS), 16, 32)]:
        requested = prompts(rows, shortest, longest)
        assert len({str(answered(engine, requested, TOKENS)) for engine in engines.values()}) == 1
        calls: dict[str, Any] = {name: partial(answered, engine, requested, TOKENS) for name, engine in engines.items()}
        spent = in_turns(
            {**calls, "generate()": partial(generated, together.model, requested, TOKENS)}, rounds, time.process_time
        )
        found[f"{rows} at once, {shortest} to {longest} tokens"] = {
            **tokens_per_second(spent, rows * TOKENS),
            "engine / generate()": ratio(spent["generate()"], spent["a pass for all"]),
            "for all / for each": ratio(spent["a pass for each"], spent["a pass for all"]),
        }
    return found


def ratio(slow: float, fast: float) -> float:
    return round(slow / fast, 2)


# ---- arrivals ----------------------------------------------------------------------------------------------------


def arrivals(model: Path, requests: int) -> dict[str, Any]:
    """Poisson arrivals at parts of what `generate()` can do: how long a request takes from coming to its last token."""
    from _answering import engine_of, generated, prompts

    from modelyard.parts.torch.network import Network

    engine, plain = engine_of(Network(model), 32), Network(model).model
    begun = time.process_time()
    for _ in range(3):
        generated(plain, prompts(32, 24, 24), TOKENS)
    capacity = 3 * 32 * TOKENS / (time.process_time() - begun)
    found = {}
    for load in (0.1, 0.3):
        rate = load * capacity / statistics.mean(LENGTHS)
        work = _work(requests, rate)
        static, ours = _static(plain, work), _continuous(engine, work)
        found[f"{load:.0%} of what generate() does at 32"] = {
            "requests per CPU s": round(rate),
            "static batches, latency ms": _spread(static),
            "engine, latency ms": _spread([end for _, end in ours]),
            "engine, first token ms": _spread([first for first, _ in ours]),
            "static / engine, p50": ratio(_at(static, 0.5), _at([end for _, end in ours], 0.5)),
            "static / engine, p95, target 2": ratio(_at(static, 0.95), _at([end for _, end in ours], 0.95)),
        }
    return found


Work = list[tuple[float, list[int], int]]


def _work(requests: int, rate: float) -> Work:
    """When each comes, its prompt, and how long its answer is."""
    from _answering import prompts

    draw, now, work = random.Random(7), 0.0, []
    for prompt in prompts(requests, 8, 40, seed=7):
        now += draw.expovariate(rate)
        work.append((now, prompt, draw.choice(LENGTHS)))
    return work


def _static(model: Any, work: Work) -> list[float]:
    """Whatever waits, up to 32, is one batch that goes on until its longest answer is done."""
    from _answering import generated

    waiting, now, latencies = list(work), 0.0, []
    while waiting:
        now = max(now, waiting[0][0])
        batch = [one for one in waiting if one[0] <= now][:32]
        begun = time.process_time()
        generated(model, [prompt for _, prompt, _ in batch], max(length for _, _, length in batch))
        now += time.process_time() - begun
        latencies += [now - came for came, _, _ in batch]
        waiting = waiting[len(batch) :]
    return latencies


def _continuous(engine: Any, work: Work) -> list[tuple[float, float]]:
    """A step at a time: when the first and the last token of each request were there."""
    from modelyard.domain.completion import Sampling
    from modelyard.parts.torch.serving.sequence import Sequence, SequenceState

    waiting, active, now, latencies = list(work), [], 0.0, []
    while waiting or active:
        if not active:
            now = max(now, waiting[0][0])
        begun = time.process_time()
        while waiting and waiting[0][0] <= now:
            came, prompt, length = waiting.pop(0)
            active.append([Sequence(prompt, Sampling(temperature=0), length), came, None])
            engine.submit(active[-1][0])
        engine.wait(active[0][0], len(active[0][0].sampled))
        now += time.process_time() - begun
        for one in active:
            one[2] = one[2] or (one[0].sampled and now - one[1]) or None
        latencies += [(first, now - came) for sequence, came, first in active if sequence.state is SequenceState.ENDED]
        active = [one for one in active if one[0].state is not SequenceState.ENDED]
    return latencies


def _at(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


def _spread(seconds: list[float]) -> dict[str, float]:
    return {"p50": round(_at(seconds, 0.5) * 1000, 1), "p95": round(_at(seconds, 0.95) * 1000, 1)}


# ---- adapters ----------------------------------------------------------------------------------------------------


def adapters(model: Path, folder: Path, rounds: int) -> dict[str, Any]:
    """32 answers at once by the base, by one adapter, and by eight in one batch; peft's mixed batch beside it."""
    from _answering import adapter, answered, engine_of, generated, in_turns, prompts

    from modelyard.parts.torch.network import Network

    network = Network(model)
    made = [adapter(network, seed) for seed in range(ADAPTERS)]
    engine = engine_of(network, 32, adapters=ADAPTERS)
    loads = []
    for slot, (shape, weights) in enumerate(made, 1):
        begun = time.process_time()
        engine.load(slot, shape, weights)
        loads.append(time.process_time() - begun)
    requested = prompts(32, 24, 24)
    mixed = [1 + row % ADAPTERS for row in range(32)]
    calls: dict[str, Callable[[], object]] = {
        "base": lambda: answered(engine, requested, TOKENS),
        "one adapter": lambda: answered(engine, requested, TOKENS, slot=1),
        f"{ADAPTERS} adapters mixed": lambda: answered(engine, requested, TOKENS, slot=mixed),
    }
    peft = _peft(model, folder, made)
    if peft is not None:
        names = [f"a{slot}" for slot in mixed]
        assert generated(peft, requested, 8, adapter_names=names) == answered(engine, requested, 8, slot=mixed)
        calls["peft's mixed batch"] = lambda: generated(peft, requested, TOKENS, adapter_names=names)
    spent = in_turns(calls, rounds, time.process_time)
    report: dict[str, Any] = tokens_per_second(spent, 32 * TOKENS)
    if peft is not None:
        ours = spent[f"{ADAPTERS} adapters mixed"]
        report["engine / peft, mixed, target 1.5"] = ratio(spent["peft's mixed batch"], ours)
    return {**report, "an adapter is put into its slot in, CPU ms": round(statistics.median(loads) * 1000, 2)}


def _peft(model: Path, folder: Path, made: list[Any]) -> Any:
    """The same adapters in peft, where it is installed."""
    if find_spec("peft") is None:
        return None
    from peft import PeftModel

    from modelyard.parts.torch.lora import CONFIG_FILE, WEIGHTS_FILE, tensor_bytes
    from modelyard.parts.torch.network import Network

    loaded = None
    for slot, (shape, weights) in enumerate(made, 1):
        path = folder / f"a{slot}"
        path.mkdir()
        (path / CONFIG_FILE).write_bytes(shape.config(str(model)))
        (path / WEIGHTS_FILE).write_bytes(tensor_bytes(weights))
        if loaded is None:
            loaded = PeftModel.from_pretrained(Network(model).model, path, adapter_name=f"a{slot}").eval()
        else:
            loaded.load_adapter(path, adapter_name=f"a{slot}")
    return loaded


# ---- structure, memory -------------------------------------------------------------------------------------------


def json_mode(model: Path, rounds: int) -> dict[str, Any]:
    """What a step costs when every answer must be a JSON object of one long string, beside none that must."""
    from _answering import answered, engine_of, in_turns, prompts

    from modelyard.domain.completion import CompletionRequest, Message, ResponseFormat, ResponseType, Role
    from modelyard.parts.torch.network import Network
    from modelyard.parts.torch.serving.grammar import Grammars
    from modelyard.parts.torch.tokenizer import ChatTokenizer

    if find_spec("llguidance") is None:
        return {"left out": "llguidance is not installed"}
    chat = ChatTokenizer(model)
    grammars = Grammars(chat, len(chat.token_bytes))
    schema = {"type": "object", "properties": {"text": {"type": "string", "minLength": 1000}}, "required": ["text"]}
    request = CompletionRequest(
        "m", (Message(Role.USER, "x"),), response_format=ResponseFormat(ResponseType.JSON_SCHEMA, "s", schema)
    )
    engine = engine_of(Network(model), max(ROWS))

    def cost(rows: int) -> float:
        requested = prompts(rows, 24, 24)
        calls: dict[str, Callable[[], object]] = {
            "free": lambda: answered(engine, requested, TOKENS),
            "constrained": lambda: answered(
                engine, requested, TOKENS, grammar=[grammars.of(request, None) for _ in range(rows)]
            ),
        }
        spent = in_turns(calls, rounds, time.process_time)
        return ratio(spent["constrained"], spent["free"])

    return {f"{rows} at once, constrained / free": cost(rows) for rows in ROWS}


def memory(model: Path) -> dict[str, Any]:
    """What keys and values take of what was granted: no more than all rows at their longest can use."""
    from _answering import engine_of

    from modelyard.parts.torch.kv_cache import bytes_per_token
    from modelyard.parts.torch.network import Network

    network, granted = Network(model), 2**26
    taken = {}
    for rows in ROWS:
        cache = engine_of(network, rows, granted).rows.cache
        taken[f"{rows} rows, bytes"] = sum(one.untyped_storage().nbytes() for one in (*cache.keys, *cache.values))
    return {"granted bytes": granted, "bytes of a token": bytes_per_token(network.config, network.dtype), **taken}


# ---- the whole way -----------------------------------------------------------------------------------------------


def through_the_platform(model: Path, folder: Path, rounds: int) -> dict[str, Any]:
    """Completions through the public API: alone, and by 32 threads; a job's end to its checkpoint's first token."""
    from _answering import answered, engine_of, in_turns

    from modelyard import open_platform
    from modelyard.domain.completion import Message, Role
    from modelyard.parts.torch.network import Network
    from modelyard.parts.torch.tokenizer import ChatTokenizer

    with open_platform(folder / "yard.db") as host, ThreadPoolExecutor(32) as threads:
        host.add_base_model(model, id="tiny")
        engine, chat = engine_of(Network(model), 32), ChatTokenizer(model)
        requested = [chat.prompt((Message(Role.USER, f"question {row}"),), ()) for row in range(32)]

        def complete(row: int) -> int:
            options: dict[str, Any] = {"temperature": 0, "max_tokens": TOKENS, "project": "bench"}
            answer = host.chat.complete(model="tiny", messages=f"question {row}", **options)
            return answer.usage.completion_tokens

        reply = [complete(row) for row in range(32)]
        calls: dict[str, Callable[[], object]] = {
            "complete, alone": lambda: complete(0),
            "engine, alone": lambda: answered(engine, requested[:1], reply[0]),
            "complete, 32 threads": lambda: list(threads.map(complete, range(32))),
            "engine, 32 at once": lambda: answered(engine, requested, TOKENS, max_tokens=reply),
        }
        spent = in_turns(calls, rounds, time.process_time)
        return {
            **{f"{name}, CPU ms": round(seconds * 1000, 1) for name, seconds in spent.items()},
            "complete / engine, alone": ratio(spent["complete, alone"], spent["engine, alone"]),
            "complete / engine, 32": ratio(spent["complete, 32 threads"], spent["engine, 32 at once"]),
            "from a job's end to the first token of its checkpoint, CPU ms": round(_to_served(host) * 1000, 1),
        }


def _to_served(host: Any) -> float:
    """When the job has ended, the base is in memory, as it answers already."""
    host.models.create("m", project="bench", base_model="tiny")
    row = {"messages": [{"role": "user", "content": "ping"}, {"role": "assistant", "content": "pong"}]}
    host.training.sft("bench/m", [row] * 2).result()
    begun = time.process_time()
    host.chat.complete(model="local/bench/m", messages="ping", max_tokens=1, project="bench")
    return time.process_time() - begun


if __name__ == "__main__":
    main()
