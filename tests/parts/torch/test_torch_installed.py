"""Whether the tests of this folder can run at all."""

from importlib.util import find_spec

import pytest


def test_torch_is_installed() -> None:
    missing = [name for name in ("torch", "transformers", "safetensors", "llguidance", "peft") if not find_spec(name)]
    if "torch" in missing:
        pytest.skip("tests/parts/torch needs torch: python tests/clients/lanes.py torch")
    assert missing == []
