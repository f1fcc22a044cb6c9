"""The checks of `tests.campaigns.vllm`, run in vLLM's environment: chat, adapters, a restart, and a loop of RL."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import httpx

from modelyard import Message, Platform, Pricing, Role, Trajectory, TrajectoryGroup, UpstreamBackend, open_platform
from modelyard.backends import VLLM, LoraAdapters, Timeouts, offer
from modelyard.engines import LocalBackend, LocalTrainer
from modelyard.errors import BackendError, ContextLengthExceeded, InvalidInput
from modelyard.testing import build_tiny_model

BASE, CHECKPOINTS, ROOM = "tiny", 8, 4
QUESTIONS = ("How many?", "How far is it?", "When was that?", "What does it cost?")
WHITE = (200, 201, 204, 223)
"""The tiny model's tokens of white space, which may continue for ever between the parts of JSON."""
LONGEST_START = 600.0
Figures = dict[str, Any]


class Server:
    """A vLLM server of the tiny model, with room for `ROOM` adapters."""

    def __init__(self, folder: Path, scratch: Path, port: int = 8765) -> None:
        self.url, self._folder, self._port = f"http://127.0.0.1:{port}", folder, port
        self._log = scratch / "vllm.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start it, and return how many seconds that took."""
        began = time.monotonic()
        words = ["--model", self._folder, "--served-model-name", BASE, "--host", "127.0.0.1", "--port", self._port]
        words += ["--enable-lora", "--max-loras", ROOM, "--max-lora-rank", 16, "--max-model-len", 1024]
        words += ["--dtype", "float32", "--enforce-eager", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *map(str, words)]
        settings = {
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NO_USAGE_STATS": "1",
            "OMP_NUM_THREADS": "1",
        }
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, env={**os.environ, **settings}, stdout=log, stderr=log)
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() - began > LONGEST_START:
                raise RuntimeError(f"vLLM did not start: {self._log.read_text()[-2000:]}")
            time.sleep(1)
        return time.monotonic() - began

    def _answers(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/health").status_code == 200
        return False

    def stop(self, how: int = signal.SIGTERM, longest: float = 60.0) -> float:
        """Stop it, and return how many seconds it took to exit."""
        assert self.process is not None
        began = time.monotonic()
        self.process.send_signal(how)
        try:
            self.process.wait(longest)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        return time.monotonic() - began


@attrs.define(eq=False)
class Bench:
    """The server, and the same store served by it (`far`) and by modelyard's own engine (`near`)."""

    server: Server
    adapters: LoraAdapters
    far: Platform
    near: Platform

    def names(self) -> list[str]:
        """Return the base and every checkpoint."""
        return [BASE, *(f"local/desk/bench:step{step}" for step in range(1, CHECKPOINTS + 1))]


@contextlib.contextmanager
def bench(scratch: Path) -> Iterator[Bench]:
    """Build the model, train the checkpoints, start the server."""
    folder = build_tiny_model(scratch / "tiny", "mini")
    with open_platform() as first:
        first.add_base_model(folder, id=BASE)
        bases = list(first.base_models())
    server = Server(folder, scratch)
    print(f"vLLM answers after {server.start():.0f} s", flush=True)
    can = attrs.evolve(VLLM, trainable=True)
    adapters = LoraAdapters(server.url, scratch / "adapters", max_loaded=ROOM)
    timeouts = Timeouts(first_token=60, between_tokens=5)
    offered = offer(BASE, context_length=1024, pricing=Pricing(), capabilities=can)
    upstream = UpstreamBackend(f"{server.url}/v1", models=[offered], adapters=adapters, timeouts=timeouts)
    own = LocalBackend(bases)
    store = scratch / "bench.db"
    try:
        with (
            upstream,
            open_platform(store, backend=upstream, trainers=[LocalTrainer(bases)]) as far,
            open_platform(store, backend=own) as near,
        ):
            _train(far)
            yield Bench(server, adapters, far, near)
    finally:
        own.close()
        server.stop()


def _train(platform: Platform) -> None:
    platform.models.create("bench", project="desk", base_model=BASE)
    for step in range(CHECKPOINTS):
        turns = [{"role": "user", "content": "ping"}, {"role": "assistant", "content": f"pong {step} {step}"}]
        platform.training.sft("desk/bench", [{"messages": turns}] * 4, learning_rate=1e-2).result()


def expect(holds: bool, what: str) -> None:
    """Raise AssertionError unless it holds."""
    if not holds:
        raise AssertionError(what)


def raised(kind: type[Exception], ask: Callable[[], Any]) -> Exception:
    """Return the exception of this kind that asking raises."""
    try:
        ask()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


# ---- chat ----------------------------------------------------------------------------------------------------------


def check_chat(bench: Bench) -> Figures:
    """Ask for everything that `VLLM` declares, and for what cannot be."""
    chat = bench.far.chat
    ask: dict[str, Any] = {"model": BASE, "messages": "hello", "seed": 7, "max_tokens": 24, "logprobs": True}
    whole = chat.complete(**ask, top_logprobs=3, return_token_ids=True)
    with chat.stream(**ask, top_logprobs=3, return_token_ids=True) as stream:
        for _ in stream:
            pass
    streamed = stream.completion
    assert streamed is not None
    expect(whole.choices[0].token_ids == streamed.choices[0].token_ids, "whole and streamed answers differ")
    expect(whole.usage == streamed.usage and not whole.usage.estimated, "usage differs or is estimated")
    expect(whole.usage.completion_tokens == len(whole.choices[0].token_ids), "usage does not count the tokens")
    for entry in whole.choices[0].logprobs or ():
        order = [other.logprob for other in entry.top]
        expect(order == sorted(order, reverse=True), "alternatives are not sorted")
    greedy = chat.complete(**{**ask, "temperature": 0}, n=3)
    expect(len({choice.message.text for choice in greedy.choices}) == 1, "greedy choices differ")
    expect(len(chat.complete(**ask, n=3).choices) == 3, "there are not three choices")
    _check_forms(chat, ask)
    _check_refusals(chat, ask)
    return {"tokens": whole.usage.completion_tokens}


def _check_forms(chat: Any, ask: dict[str, Any]) -> None:
    choice = chat.complete(**ask, structured_outputs={"choice": ["yes", "no"]})
    expect(choice.text in ("yes", "no"), f"{choice.text!r} is not one of the choices")
    pattern = chat.complete(**ask, structured_outputs={"regex": "[a-c]{3}"})
    expect(len(pattern.text) == 3 and set(pattern.text) <= set("abc"), f"{pattern.text!r} does not fit")
    least = chat.complete(**{**ask, "logit_bias": {2: 100}}, min_tokens=5)
    expect(least.usage.completion_tokens == 6, f"{least.usage.completion_tokens} tokens instead of 5 and the end")
    longest = chat.complete(**{**ask, "logit_bias": {2: 100}}, ignore_eos=True)
    expect(longest.usage.completion_tokens == ask["max_tokens"], "the end of turn was not ignored")
    parameters = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    parameters["additionalProperties"] = False
    tool = {"type": "function", "function": {"name": "look", "parameters": parameters}}
    called = 0
    for seed in range(8):
        forced = {**ask, "seed": seed, "max_tokens": 120, "logprobs": False, "logit_bias": dict.fromkeys(WHITE, -100)}
        (done,) = chat.complete(**forced, tools=[tool], tool_choice="required").choices
        for call in done.message.tool_calls:
            called += 1
            expect(json.loads(call.arguments).get("a") in (1, 2), f"{call.arguments} does not fit the schema")
    expect(called > 0, "no forced call was complete")
    print(f"  {called} of 8 forced calls were complete, and fitted their schema", flush=True)


def _check_refusals(chat: Any, ask: dict[str, Any]) -> None:
    long = {**ask, "messages": "x" * 1100}
    error = raised(ContextLengthExceeded, lambda: chat.complete(**long))
    expect("maximum context length is 1024" in str(error), str(error))
    wrong = raised(InvalidInput, lambda: chat.complete(**{**ask, "logit_bias": {5000: 1}}))
    expect(wrong.problems[0].loc == ("logit_bias",), str(wrong))  # type: ignore[attr-defined]


# ---- adapters ------------------------------------------------------------------------------------------------------


def check_adapters(bench: Bench) -> Figures:
    """Compare greedy answers of all checkpoints with those of modelyard's own engine, while adapters come and go."""
    requested = [(name, question) for name in bench.names() for question in QUESTIONS]
    same, tokens, furthest, expected = 0, 0, 0.0, {}
    for name, question in requested:
        ask: dict[str, Any] = {"model": name, "messages": question, "max_tokens": 32, "temperature": 0}
        (here,) = bench.near.chat.complete(**ask, logprobs=True, return_token_ids=True).choices
        (there,) = bench.far.chat.complete(**ask, logprobs=True, return_token_ids=True).choices
        same += here.token_ids == there.token_ids
        tokens += len(here.token_ids)
        pairs = zip(here.logprobs or (), there.logprobs or (), strict=False)
        furthest = max([furthest, *(abs(one.logprob - other.logprob) for one, other in pairs)])
        expected[name, question] = there.message.text
    wrong, seconds = _at_once(bench, expected)
    figures = {"same": same, "of": len(requested), "tokens": tokens, "furthest_logprob": furthest}
    expect(same == len(requested), f"{figures}: answers differ from those of modelyard's own engine")
    expect(wrong == 0, f"{wrong} answers of 128 at once are of the wrong adapter")
    return {
        **figures,
        "at_once_wrong": wrong,
        "at_once_seconds": round(seconds, 1),
        "loaded": len(bench.adapters.loaded),
    }


def _at_once(bench: Bench, expected: dict[tuple[str, str], str]) -> tuple[int, float]:
    """Ask 128 times at once over all adapters; return how many answers are wrong, and the seconds."""
    requested = [key for key in expected if key[0] != BASE] * 4
    began = time.monotonic()

    def ask(key: tuple[str, str]) -> bool:
        name, question = key
        found = bench.far.chat.complete(model=name, messages=question, max_tokens=32, temperature=0)
        return found.text == expected[key]

    with ThreadPoolExecutor(128) as threads:
        right = list(threads.map(ask, requested[:128]))
    return right.count(False), time.monotonic() - began


# ---- a restart -----------------------------------------------------------------------------------------------------


def check_restart(bench: Bench) -> Figures:
    """Stop the server while answers of the base and of an adapter are read, start it again, and ask as before."""
    ask: dict[str, Any] = {"max_tokens": 24, "temperature": 0, "messages": "ping"}
    before = {name: bench.far.chat.complete(model=name, **ask).text for name in bench.names()[:3]}
    ends: list[str] = []

    def read(name: str) -> str:
        try:
            with bench.far.chat.stream(model=name, messages="ping", max_tokens=900, ignore_eos=True) as stream:
                for _ in stream:
                    pass
        except BackendError as error:
            return str(error)
        return "complete"

    with ThreadPoolExecutor(4) as threads:
        readers = [threads.submit(read, name) for name in bench.names()[:2] * 2]
        time.sleep(1)
        exited = bench.server.stop()
        ends = [reader.result() for reader in readers]
    error = raised(BackendError, lambda: bench.far.chat.complete(model=BASE, **ask))
    expect("cannot be reached" in str(error), str(error))
    started = bench.server.start()
    after = {name: bench.far.chat.complete(model=name, **ask).text for name in before}
    expect(before == after, "answers differ after the restart")
    expect(not any("malformed" in end for end in ends), f"an answer ended as malformed: {ends}")
    return {"readers": ends, "exited_after": round(exited, 1), "started_after": round(started)}


# ---- reinforcement -------------------------------------------------------------------------------------------------


def check_rl(bench: Bench, rounds: int = 16) -> Figures:
    """Sample on vLLM, train here, and let vLLM load each checkpoint: the rewards must rise."""
    platform = bench.far
    platform.models.create("counter", project="desk", base_model=BASE)
    rewards, began = [], time.monotonic()
    for round_ in range(rounds):
        groups = [_attempts(platform, question, round_) for question in QUESTIONS]
        found = [trajectory.reward for group in groups for trajectory in group.trajectories]
        rewards.append(round(sum(found) / len(found), 2))
        platform.training.rl("desk/counter", groups, learning_rate=5e-3).result()
    figures = {"rewards": rewards, "seconds": round(time.monotonic() - began)}
    expect(sum(rewards[-3:]) / 3 > 0.5 + rewards[0] / 2, f"{figures}: the rewards do not rise")
    return figures


def _attempts(platform: Platform, question: str, round_: int) -> TrajectoryGroup:
    answer = platform.chat.complete(
        model="local/desk/counter",
        messages=question,
        n=8,
        seed=8 * round_,
        max_tokens=8,
        logprobs=True,
        return_token_ids=True,
    )
    requested = [Message(Role.USER, question)]
    return TrajectoryGroup(tuple(Trajectory.of(requested, one, _digits(one.message.text)) for one in answer.choices))


def _digits(reply: str) -> float:
    return sum(letter in "0123456789" for letter in reply) / max(len(reply), 1)


CHECKS = {"chat": check_chat, "adapters": check_adapters, "rl": check_rl, "restart": check_restart}


def main(scratch: str, names: Sequence[str]) -> int:
    """Run the checks, print what each found, and return how many failed."""
    failed = 0
    with bench(Path(scratch)) as made:
        for name in names or CHECKS:
            try:
                print(f"{name}: {json.dumps(CHECKS[name](made))}", flush=True)
            except Exception as error:
                failed += 1
                print(f"{name}: FAILED: {type(error).__name__}: {error}", flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2:]))
