"""A pretrained model, trained and taken elsewhere: what two libraries answer and learn, within stated bounds.

    python -m tests.campaigns.real_model FOLDER                       every check
    python -m tests.campaigns.real_model FOLDER steps narrow taken gguf   these only

FOLDER has a causal language model in the transformers format. It needs the extras `torch` and `gguf`, peft, and for
`gguf` xllamacpp. With 135 million weights each check takes one to two minutes of a processor. Prints figures; exits
with 1 if one is out of its bound.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from peft import AutoPeftModelForCausalLM
from safetensors.torch import load
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.extend(str(Path(__file__).parents[1] / place) for place in ("shared", "parts/torch"))

from local_models import base_model
from plain_loop import answers, in_64_bits, peft_model, plain_loop

from modelyard import Platform, open_platform
from modelyard.domain.completion import Message, Role
from modelyard.domain.training import Example
from modelyard.parts.contracts.trainer import context_of, followed
from modelyard.parts.torch.training.options import LocalSFTConfig
from modelyard.parts.torch.training.trainer import LocalTrainer

ADAPTER = "adapter_model.safetensors"
ASKED = (
    "What is the capital of France?",
    "Name three fruits.",
    "What is 12 + 30?",
    "Who wrote Hamlet?",
    "How many legs has a spider?",
    "Say hello in 3 languages.",
    "Why is the sky blue?",
    "How do I boil an egg?",
    "Name a river in Africa.",
    "Is 97 prime?",
)
SAID = ("one", "a second one", "number three", "the fourth of them")
ROWS = [
    {"messages": [{"role": "user", "content": f"Say {number}."}, {"role": "assistant", "content": SAID[number % 4]}]}
    for number in range(12)
]
TOKENS = 16


@attrs.define
class Report:
    """Figures beside their bounds."""

    broken: int = 0

    def add(self, name: str, value: float, most: float) -> None:
        self.broken += not value <= most
        print(f"{'' if value <= most else 'BROKEN '}{name}: {value:.3g} (at most {most:g})", flush=True)


@attrs.frozen
class Answer:
    """A greedy answer, and its log-probabilities."""

    text: str
    logprobs: Sequence[float]


def answered(platform: Platform, model: str) -> list[Answer]:
    found = []
    for question in ASKED:
        choice = platform.chat.complete(
            model=model, messages=question, project="demo", max_tokens=TOKENS, temperature=0, logprobs=True
        ).choices[0]
        assert choice.logprobs is not None
        found.append(Answer(choice.message.text, [one.logprob for one in choice.logprobs]))
    return found


def answered_there(network: Any, folder: Path) -> list[Answer]:
    """Return what transformers answers, and the log-probabilities of a whole pass."""
    tokenizer, found = AutoTokenizer.from_pretrained(folder), []
    for question in ASKED:
        asked = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        start = asked["input_ids"].shape[1]
        ids = network.generate(**asked, max_new_tokens=TOKENS, do_sample=False)
        with torch.no_grad():
            scores = network(ids).logits[0, start - 1 : -1].float().log_softmax(-1)
        said = ids[0, start:]
        text = tokenizer.decode(said, skip_special_tokens=True)
        found.append(Answer(text, scores.gather(1, said[:, None])[:, 0].tolist()))
    return found


def compare(report: Report, name: str, found: list[Answer], wanted: list[Answer], other: int, bound: float) -> None:
    """Count answers that are not equal, and measure the log-probabilities up to where they part."""
    different = [one for one in zip(found, wanted, strict=True) if one[0].text.strip() != one[1].text.strip()]
    report.add(f"{name}: other answers of {len(ASKED)}", len(different), other)
    equal = [pair for pair in zip(found, wanted, strict=True) if pair not in different]
    pairs = (two for a, b in equal for two in zip(a.logprobs, b.logprobs, strict=False))
    report.add(
        f"{name}: log-probabilities of the equal ones, nats", max((abs(a - b) for a, b in pairs), default=0), bound
    )


# ---- the checks ----------------------------------------------------------------------------------------------------


def steps(report: Report, folder: Path, scratch: Path) -> None:
    """Losses, gradients and weights beside a plain loop, and a plain loop in 64 bits."""
    rows = [
        Example((Message(Role.USER, row["messages"][0]["content"]), Message(Role.ASSISTANT, SAID[number % 4])))
        for number, row in enumerate(ROWS)
    ]
    trainer = LocalTrainer([base_model(folder, "one")], device="cpu")

    def trained(config: LocalSFTConfig) -> Any:
        return followed(trainer.train("sft", config, rows, context_of("one")))

    begun = trained(LocalSFTConfig(learning_rate=0, batch_size=12, seed=3)).files[ADAPTER]
    config = LocalSFTConfig(learning_rate=1e-4, batch_size=4, schedule="linear", seed=3)
    run = trained(config)
    ours = [[step.metrics["loss"], step.metrics["grad_norm"]] for step in run.steps]
    plain, exact = peft_model(folder, begun), peft_model(folder, begun).double()
    theirs = plain_loop(plain, answers(folder, rows), config)
    with in_64_bits():
        wanted = plain_loop(exact, answers(folder, rows), config)
    for number, (mine, other, best) in enumerate(zip(ours, theirs, wanted, strict=True), 1):
        print(f"step {number}: ours {mine[0]:.9f}, plain {other[0]:.9f}, in 64 bits {best[0]:.9f}")
        for kind, a, b, c in zip(("loss", "norm"), mine, other, best, strict=True):
            report.add(f"step {number}, {kind}, relative to a plain loop", abs(a - b) / abs(c), 2e-6)
            report.add(f"step {number}, {kind}, relative to 64 bits", abs(a - c) / abs(c), 5e-6)
    kept, ends = load(run.files[ADAPTER]), [_parameters(one) for one in (plain, exact)]
    report.add("weights, to a plain loop", _furthest(kept, ends[0]), 1e-4)
    rounding = _furthest(ends[0], ends[1])
    report.add("weights, to 64 bits, over those of a plain loop", _furthest(kept, ends[1]) / rounding, 1.5)


def _parameters(model: Any) -> Mapping[str, torch.Tensor]:
    found = {name.replace(".default", ""): one.detach() for name, one in model.named_parameters()}
    return {name: one for name, one in found.items() if "lora_" in name}


def _furthest(found: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> float:
    return max((found[name] - wanted[name]).abs().max().item() for name in found)


def narrow(report: Report, folder: Path, scratch: Path) -> None:
    """Training and answers on weights in fewer bits, beside those on 32."""
    losses, said = {}, {}
    with open_platform() as platform:
        for form in ("float32", "bfloat16", "int8"):
            platform.add_base_model(folder, id=form, weights=form)
            model = platform.models.create(form, project="demo", base_model=form)
            job = platform.training.sft(model, ROWS, learning_rate=1e-3, batch_size=4, seed=3).wait()
            losses[form] = [row.values["loss"] for row in job.metrics()]
            said[form] = answered(platform, form)
            print(form, " ".join(f"{loss:.5f}" for loss in losses[form]), flush=True)
    for form, bound, other in (("bfloat16", 0.01, 1), ("int8", 0.03, 5)):
        far = max(abs(a - b) / b for a, b in zip(losses[form], losses["float32"], strict=True))
        report.add(f"{form}: losses, relative to 32 bits", far, bound)
        compare(report, form, said[form], said["float32"], other, 10 * bound)


def _exported(platform: Platform, folder: Path) -> None:
    platform.add_base_model(folder, id="base")
    model = platform.models.create("m", project="demo", base_model="base")
    platform.training.sft(model, ROWS, learning_rate=1e-3, batch_size=4, seed=3).wait()


def taken(report: Report, folder: Path, scratch: Path) -> None:
    """The adapter read by peft, and the merged folder by transformers."""
    with open_platform() as platform:
        _exported(platform, folder)
        wanted = answered(platform, "demo/m")
        platform.models.export("demo/m", scratch / "adapter")
        platform.models.export("demo/m", scratch / "merged", merged=True)
    read: Mapping[str, Callable[[Path], Any]] = {
        "adapter": AutoPeftModelForCausalLM.from_pretrained,
        "merged": AutoModelForCausalLM.from_pretrained,
    }
    for form, load_folder in read.items():
        there = answered_there(load_folder(scratch / form).eval(), scratch / form)
        compare(report, form, there, wanted, 0, 1e-4)


def gguf(report: Report, folder: Path, scratch: Path) -> None:
    """A file in llama.cpp, beside the same file as this platform reads it, and beside 32 bits.

    llama.cpp rounds what it multiplies with such weights, too: to 16 or to 8 bits. So 8 bits answer otherwise there,
    with equal weights.
    """
    with open_platform() as platform:
        _exported(platform, folder)
        wide = answered(platform, "demo/m")
        for kind in ("f16", "q8_0"):
            file = scratch / f"{kind}.gguf"
            platform.models.export("demo/m", file, gguf=kind)
            platform.add_base_model(file, id=kind)
            here, there = answered(platform, kind), list(_in_llama_cpp(file))
            most = {"f16": (0, 0.03), "q8_0": (4, 0.4)}[kind]
            compare(report, f"{kind} in llama.cpp and here", there, here, *most)
            compare(report, f"{kind} here and 32 bits", here, wide, *most)
            compare(report, f"{kind} in llama.cpp and 32 bits", there, wide, *most)


def _in_llama_cpp(file: Path) -> Iterator[Answer]:
    import xllamacpp

    wanted = xllamacpp.CommonParams()
    wanted.model.path, wanted.n_ctx, wanted.n_parallel, wanted.warmup = str(file), 2048, 1, False
    wanted.cpuparams.n_threads, wanted.verbosity = 1, -1
    server = xllamacpp.Server(wanted)
    for question in ASKED:
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": TOKENS, "temperature": 0, "top_k": 1}
        found = server.handle_chat_completions({**body, "logprobs": True, "top_logprobs": 1})
        choice = (json.loads(found) if isinstance(found, str) else found)["choices"][0]
        scored = (choice.get("logprobs") or {}).get("content", [])
        yield Answer(choice["message"]["content"], [one["logprob"] for one in scored])


CHECKS = {one.__name__: one for one in (steps, narrow, taken, gguf)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("checks", nargs="*", metavar="check", help=f"one of {', '.join(CHECKS)}")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    report = Report()
    for name in asked.checks or CHECKS:
        with tempfile.TemporaryDirectory() as scratch:
            CHECKS[name](report, asked.folder, Path(scratch))
    return 1 if report.broken else 0


if __name__ == "__main__":
    sys.exit(main())
