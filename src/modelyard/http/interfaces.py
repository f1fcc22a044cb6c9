"""The interfaces of the core, and those that are mounted by default."""

from collections.abc import Iterable, Iterator, Sequence

from modelyard.http.error_responses import DETAIL, ERROR, REASON
from modelyard.http.interface import Auth, Interface
from modelyard.lazy import deferred
from modelyard.part import Part, standard_parts

TRAINING = Interface(
    "training",
    DETAIL,
    {("v1",): (Auth.BEARER, DETAIL), ("v1", "chat"): (Auth.BEARER, ERROR), ("v1", "models"): (Auth.BEARER, ERROR)},
    description="Models that are trained, their checkpoints and jobs, and chat completions with what training needs.",
)
INFERENCE = Interface(
    "inference", ERROR, {("inference", "v1"): (Auth.BEARER, ERROR)}, description="Chat completions, and their models."
)
BASE = Interface(
    "base",
    REASON,
    {("v2",): (Auth.BASIC, REASON), ("evaluations",): (Auth.BASIC, REASON)},
    description="The public catalogue, evaluation runs with what they are made of, and what tells how the server is.",
)
OPERATIONS = Interface("operations", DETAIL, description="What a host does, such as with keys and budgets.")

CORE = (TRAINING, INFERENCE, BASE, OPERATIONS)


def interfaces_of(parts: Iterable[Part]) -> tuple[Interface, ...]:
    """Return the interfaces of the core and of these parts."""
    return (*CORE, *(interface for part in parts for interface in part.interfaces()))


def every_interface() -> Iterator[Interface]:
    """Yield the interfaces of the core, and then those of the standard parts, each loaded when it is reached."""
    yield from CORE
    for part in standard_parts():
        yield from part.interfaces()


def mounted_by_default(parts: Iterable[Part]) -> tuple[Interface, ...]:
    """Return the interfaces that are mounted unless some are named."""
    return tuple(interface for interface in interfaces_of(parts) if interface.standard)


STANDARD: Sequence[Interface] = deferred(lambda: mounted_by_default(standard_parts()))
"""The interfaces that are mounted by default; for a platform with parts of its own, those of its parts, too."""
