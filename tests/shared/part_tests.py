"""What each part brings to the tests of all parts, in its `in_common.py`, so that a new part changes none of them.

fill, clear       store records of each class of the part (`PartContract`), and delete them
record            send each request of its routes, for the examples of the OpenAPI document
KEYED             its POST routes that take an `Idempotency-Key`, of which it has tests of its own
NOT_CREATING      words in the paths of its POST routes that take no `Idempotency-Key`, and why they need none
TABLES            the digest of each of its tables that no kept file has
"""

from collections.abc import Mapping
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from modelyard.part import standard_parts

PARTS = Path(__file__).parents[1] / "parts"


def in_common(what: str) -> Mapping[str, Any]:
    """Return what the parts bring under a name, by the part."""
    loaded = {part.name: _loaded(part.name) for part in standard_parts()}
    return {name: getattr(module, what) for name, module in loaded.items() if hasattr(module, what)}


@cache
def _loaded(name: str) -> ModuleType | None:
    path = PARTS / name / "in_common.py"
    if not path.exists():
        return None
    spec = spec_from_file_location(f"in_common_of_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
