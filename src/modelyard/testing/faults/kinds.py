"""What can go wrong, beside the exceptions that a port raises."""

from datetime import datetime

import attrs


@attrs.frozen
class Slow:
    """So many seconds go by on the clock, and then everything goes on."""

    seconds: float


@attrs.frozen
class Timeout:
    """So many seconds go by on the clock, and then whoever waits gives up."""

    seconds: float = 30.0


@attrs.frozen
class Disconnect:
    """The connection is lost."""


@attrs.frozen
class Cut:
    """An answer ends in the middle, as if it were complete."""


@attrs.frozen
class Malformed:
    """A model answers nonsense in the place of a piece of text."""

    chunk: object = "<html>502 Bad Gateway</html>"


@attrs.frozen
class Killed:
    """What runs a job is gone without a word, as by SIGKILL: the job stays claimed until its lease has run out."""


@attrs.frozen
class TakenOver:
    """A job goes back into the queue while its worker is still at work, as when the worker stood still for a lease."""


Fault = Exception | Slow | Timeout | Disconnect | Cut | Malformed | Killed | TakenOver


@attrs.frozen
class Happened:
    """A fault that came: at the `number`-th time of its operation, at this `moment` of the clock.

    For training jobs the number is that of the step.
    """

    operation: str
    number: int
    fault: Fault
    moment: datetime

    def __str__(self) -> str:
        return f"{self.operation} {self.number}: {self.fault!r}"
