"""The kinds of faults, besides the exceptions that a port raises."""

from collections.abc import Mapping
from datetime import datetime

import attrs


@attrs.frozen
class Slow:
    """So many seconds pass on the clock, and then the operation continues."""

    seconds: float


@attrs.frozen
class Timeout:
    """So many seconds pass on the clock, and then the caller gives up."""

    seconds: float = 30.0


@attrs.frozen
class Disconnect:
    """The client loses its connection."""


@attrs.frozen
class Cut:
    """An answer ends in the middle, as if it were complete."""


@attrs.frozen
class Malformed:
    """A model sends nonsense instead of a piece of text."""

    chunk: object = "<html>502 Bad Gateway</html>"


@attrs.frozen
class Killed:
    """The process of a job dies, as by SIGKILL: the job stays claimed until its lease expires."""


@attrs.frozen
class TakenOver:
    """A job returns to the queue while its worker still runs, as when the worker was frozen for a lease."""


Fault = Exception | Slow | Timeout | Disconnect | Cut | Malformed | Killed | TakenOver

KINDS: Mapping[str, tuple[type, ...]] = {
    "completion": (Slow, Timeout, Disconnect, Cut, Malformed),
    "connection": (Slow, Timeout, Disconnect),
    "step": (Slow, Killed, TakenOver),
    "submit": (Killed,),
}
"""What each operation takes besides exceptions."""


def check_kind(operation: str, fault: object) -> None:
    """Raise TypeError for a fault that an operation cannot have, such as a class in the place of an instance."""
    kinds = KINDS.get(operation, ())
    if isinstance(fault, (Exception, *kinds)):
        return
    names = ", ".join(["an exception", *(f"{kind.__name__}(...)" for kind in kinds)])
    call = f"; did you mean {fault.__name__}(...)?" if isinstance(fault, type) else ""
    raise TypeError(f"a fault of `{operation}` is one of {names}, not {fault!r}{call}")


@attrs.frozen
class Happened:
    """A fault that occurred: at the `number`-th call of its operation, at this `moment` of the clock. For training jobs
    the number is that of the step."""

    operation: str
    number: int
    fault: Fault
    moment: datetime

    def __str__(self) -> str:
        return f"{self.operation} {self.number}: {self.fault!r}"
