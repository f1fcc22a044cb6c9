"""Processes that hold something in the store: their record, their beats, and when a process counts as dead. The time of
beats and observations is the store's. A clock of the store that steps can deceive about one interval, so death is
concluded from two: the one before the stored observation, and the one after it."""

import attrs

from modelyard.domain.record import Index, Record


@attrs.frozen
class ProcessRecord:
    """A platform that holds admissions, as the other processes see it. `beat` grows while it lives, `beat_at` is when
    it last grew. `machine` and `process` name where it runs. `silent_at` is when another process first saw it silent
    for a lease, and None after each beat. Times are in seconds since the epoch, of the store's clock."""

    id: str
    machine: str
    process: str
    beat: int
    beat_at: float
    silent_at: float | None = None

    def beaten(self, time: float) -> "ProcessRecord":
        return attrs.evolve(self, beat=self.beat + 1, beat_at=time, silent_at=None)

    def observed(self, time: float, lease: float) -> "ProcessRecord":
        """Return the record as observed at `time`. A time stored by a clock that was ahead counts as now."""
        beat_at, silent_at = min(self.beat_at, time), self.silent_at
        if silent_at is not None:
            silent_at = min(silent_at, time)
        elif time - beat_at >= lease:
            silent_at = time
        return attrs.evolve(self, beat_at=beat_at, silent_at=silent_at)

    def is_dead(self, time: float, lease: float) -> bool:
        """Return whether it was silent for a lease before it was first observed silent, and for another lease since."""
        return self.silent_at is not None and time - self.silent_at >= lease


PROCESS = "process"
RECORDS = (Record(ProcessRecord, "processes", ("id",), indexes={"all": Index(())}, domain=(PROCESS, "id")),)
