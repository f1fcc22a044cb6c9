"""The kinds of faults, besides the exceptions that a port raises."""

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
