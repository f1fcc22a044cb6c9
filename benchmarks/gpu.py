"""The local engine on a graphics card: python benchmarks/gpu.py [--shape 0.6b] [--device cuda]. Needs torch.

First whether it is right: answers beside `generate()`, recorded passes beside passes made anew, the sampler's
log-probabilities beside the trainer's, adapters in one batch beside each alone, JSON. Then decoding, prefill, adapters,
LoRA steps, and an RL step in its parts, beside the floor that this machine's memory and arithmetic set (both measured),
`generate()`, and the continuous batching of transformers. Weights are random, which changes no time.

Each table goes to standard error as it comes, and all of them as JSON to standard output or the file `--out`, which is
written anew behind each table. What fails is noted in its table, and the next one is made. Wall time: nothing else
should run there.

    python benchmarks/gpu.py --device cpu --shape tiny      a dry run, in seconds
    python benchmarks/gpu.py --shape 8b --tables "decode,LoRA step" --out 8b.json
"""

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs

LAYERS = {
    "0.6b": {"hidden_size": 1024, "num_hidden_layers": 28, "intermediate_size": 3072, "num_attention_heads": 16},
    "1.7b": {"hidden_size": 2048, "num_hidden_layers": 28, "intermediate_size": 6144, "num_attention_heads": 16},
    "8b": {"hidden_size": 4096, "num_hidden_layers": 36, "intermediate_size": 12288, "num_attention_heads": 32},
}
"""Shapes of published models, by name."""

VOCABULARY, UNTIED = 151_936, ("8b",)


@attrs.frozen
class Plan:
    """How much is measured: rows at a time, tokens of a prompt and of an answer, of prompts that are only read, of
    rows to train on, and of RL: prompts, choices, tokens of a prompt and of an answer."""

    rows: tuple[int, ...] = (1, 8, 32, 64, 256)
    prompt: int = 960
    answer: int = 64
    read: tuple[int, ...] = (1024, 8192)
    trained: tuple[int, ...] = (2048, 8192)
    rl: tuple[int, int, int, int] = (32, 8, 512, 512)
    mixed: int = 32


DRY = Plan(rows=(1, 4), prompt=24, answer=6, read=(48,), trained=(64,), rl=(2, 2, 16, 8), mixed=4)

Rows = Iterator[dict[str, Any]]


@attrs.frozen
class Bench:
    """What is measured on: a folder with a model, a device, how much, and what the machine can do in a second."""

    folder: Path
    device: str
    plan: Plan
    bytes_per_s: float
    operations_per_s: float

    def seconds(self, call: Callable[[], object], times: int = 1) -> float:
        """Wall time of one call, after one that is not measured."""
        call()
        self.synchronize()
        begun = time.perf_counter()
        for _ in range(times):
            call()
        self.synchronize()
        return (time.perf_counter() - begun) / times

    def synchronize(self) -> None:
        """Wait for what the card has still to do."""
        import torch

        if self.device.startswith("cuda"):
            torch.cuda.synchronize(self.device)

    def fresh_peak(self) -> None:
        """From here on the most memory is counted."""
        import torch

        gc.collect()
        if self.device.startswith("cuda"):
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> float | str:
        """The most memory that was taken, in GB."""
        import torch

        on_card = self.device.startswith("cuda")
        return round(torch.cuda.max_memory_allocated(self.device) / 1e9, 2) if on_card else ""


def main(words: list[str] | None = None) -> dict[str, Any]:
    """Measure, print and return the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", default="0.6b", choices=("tiny", *LAYERS))
    parser.add_argument("--tables", help="which, by their titles, with commas; all by default")
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    requested = parser.parse_args(words)
    report = missing(requested.device)
    if report is None:
        only = requested.tables.split(",") if requested.tables else None
        report = measured(requested.device, requested.shape, only, requested.out)
    print(json.dumps(report, indent=2))
    return report


def missing(device: str) -> dict[str, Any] | None:
    """Why nothing can be measured, if so."""
    if find_spec("torch") is None:
        return {"left out": "torch is not installed: pip install 'modelyard[torch]'"}
    import torch

    if device.startswith("cuda") and not torch.cuda.is_available():
        return {"left out": "there is no graphics card; a dry run: --device cpu --shape tiny"}
    return None


def measured(device: str, shape: str, only: list[str] | None, out: Path | None) -> dict[str, Any]:
    """All figures, table by table."""
    import _gpu_serving
    import _gpu_training
    import torch
    import transformers

    found: dict[str, Any] = {"device": device, "shape": shape, "torch": torch.__version__}
    found["transformers"] = transformers.__version__
    with tempfile.TemporaryDirectory() as name:
        folder = build(Path(name) / "model", shape, device)
        found["machine"] = machine(device)
        bench = Bench(folder, device, DRY if shape == "tiny" else Plan(), *found["machine"].values())
        for title, table in {**_gpu_serving.TABLES, **_gpu_training.TABLES}.items():
            if only is None or title in only:
                found[title] = reported(title, table(bench))
                gc.collect()  # the networks of one table make room for those of the next
            if out is not None:
                out.write_text(json.dumps(found, indent=2))
    return found


def reported(title: str, table: Rows) -> list[dict[str, Any]]:
    """The rows of a table, and what kept it from having more; printed when it is done."""
    from modelyard.report.table import text_table

    rows: list[dict[str, Any]] = []
    begun = time.perf_counter()
    try:
        rows.extend(table)
    except Exception as fault:  # noqa: BLE001 - the other tables are made all the same
        rows.append({"failed": f"{type(fault).__name__}: {fault}"[:300]})
    names = tuple(dict.fromkeys(name for row in rows for name in row))
    text = text_table(names, [tuple(row.get(name, "") for name in names) for row in rows])
    print(f"\n{title} ({time.perf_counter() - begun:.0f} s)\n{text}", file=sys.stderr, flush=True)
    return rows


def build(folder: Path, shape: str, device: str) -> Path:
    """A folder with a model of random weights: the tiny one's words, and layers of this shape."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    from modelyard.parts.torch.tiny_model import build_tiny_model

    build_tiny_model(folder, "micro")
    if shape == "tiny":
        return folder
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=32_768,
        tie_word_embeddings=shape not in UNTIED,
        **LAYERS[shape],
    )
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    return folder


def machine(device: str) -> dict[str, float]:
    """Bytes that it copies and operations that it makes in a second, in the weights' number format."""
    import torch

    on_card = device.startswith("cuda")
    dtype, size = (torch.bfloat16, 8192) if on_card else (torch.float32, 512)
    one, other = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
    bench = Bench(Path(), device, DRY, 0, 0)
    return {
        "bytes per s": 2 * one.numel() * one.itemsize / bench.seconds(lambda: other.copy_(one), 20),
        "operations per s": 2 * size**3 / bench.seconds(lambda: one @ other, 20),
    }


if __name__ == "__main__":
    main()
