"""Compute losses and derivatives with the RL client's own loss.py, for `test_art_loss`: cases in, results out, as JSON.

    python art_loss.py FOLDER_OF_THE_CLIENT < cases.json

Only that file and what it needs of its package are loaded: the package itself wants more than torch and pydantic.
"""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

COLUMNS = {"logprobs": float("nan"), "original_logprobs": float("nan"), "advantages": 0.0, "weights": 0.0}


def loss_module(home: Path) -> Any:
    """Load the client's loss.py, unmodified."""
    package = ModuleType("art")
    package.__path__ = [str(home)]
    sys.modules["art"] = package
    sys.modules["art.utils"] = ModuleType("art.utils")
    sys.modules["art.utils"].__path__ = [str(home / "utils")]
    sys.modules["art.dev"] = package.dev = ModuleType("art.dev")
    package.dev.TrainConfig = dict
    spec = importlib.util.spec_from_file_location("art.loss", home / "loss.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tensor(values: list[float | None], missing: float = float("nan")) -> torch.Tensor:
    """Make a row of one batch."""
    return torch.tensor([[missing if value is None else value for value in values]], dtype=torch.float64)


def inputs(case: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Make what the loss takes: it looks at each column from its second token on."""
    given = {name: tensor([pad, *case[name]]) for name, pad in COLUMNS.items() if name in case}
    return {
        **given,
        "assistant_mask": torch.tensor([[False, *case["mask"]]]),
        "group_ids": torch.tensor([[0, *case["groups"]]]),
    }


def main() -> None:
    """Read cases from standard input, and write the loss and the derivatives of each."""
    module, results = loss_module(Path(sys.argv[1])), []
    for case in json.load(sys.stdin):
        new = tensor([*case["new"], 0.0]).requires_grad_()
        reference = tensor([*case["reference"], 0.0]) if "reference" in case else None
        loss = module.loss_fn(inputs(case), new, reference, None, case["config"])
        (derivatives,) = torch.autograd.grad(loss.policy_loss, new)
        results.append([loss.policy_loss.item(), derivatives[0, :-1].tolist()])
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
