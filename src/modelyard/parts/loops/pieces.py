"""What is kept of a group before it is whole: its answers, and what the teacher says of each. What the teacher says is
stored in the transaction that books it, so that whatever ends the loop, nobody pays for it again."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from typing import Any

import attrs

from modelyard.domain.completion import TokenLogprob
from modelyard.domain.training import TrajectoryGroup
from modelyard.errors import ArtifactMissing, LeaseLost
from modelyard.formats.converter import structure, unstructure
from modelyard.formats.training_data import GROUPS
from modelyard.parts.distillation.taught import TeacherScores
from modelyard.parts.loops.record import LoopRecord
from modelyard.platform.jobs.claims import fenced
from modelyard.protocols import StoredArtifact, Tx

Files = Mapping[str, Any]


def whole_groups(files: Files) -> dict[str, Any]:
    """Return the files of groups that are whole, by their places."""
    return {name: file for name, file in files.items() if "/" not in name}


def pieces_of(files: Files, place: int) -> dict[str, Any]:
    return {name: file for name, file in files.items() if name.startswith(f"{place}/")}


def named_file(stored: StoredArtifact) -> dict[str, Any]:
    """Return an artifact as a record names it."""
    return {"artifact": stored.name, "size": stored.size, "digest": stored.digest}


@attrs.frozen
class GroupPieces:
    """The pieces of the group at a place of a round, in the files of a loop. Thread-safe."""

    record: LoopRecord
    place: int

    def answers(self) -> TrajectoryGroup | None:
        """Return the answers that were sampled and judged, if they are kept."""
        found = self._find("answers")
        return None if found is None else next(iter(GROUPS.read(BytesIO(found))))

    def keep_answers(self, group: TrajectoryGroup) -> None:
        """Keep the answers. Raises `LeaseLost`, `StoreError`."""
        stored = self.record.put(iter([GROUPS.dump(group)]))
        self.record.runtime.store.transact(lambda tx: self._add(tx, "answers", stored))
        self.record.named(stored)

    def scores(self, at: int) -> "ScoresOfAnswer":
        return ScoresOfAnswer(self, str(at))

    def _find(self, name: str) -> bytes | None:
        """Return what a piece has; None of one that is not there, or whose file was lost: it is made again."""
        file = self.record.files.get(f"{self.place}/{name}")
        if file is not None:
            with (
                suppress(ArtifactMissing),
                self.record.runtime.artifacts.open(file["artifact"], file["digest"]) as kept,
            ):
                return bytes(kept.read())
        return None

    def _add(self, tx: Tx, name: str, stored: StoredArtifact) -> None:
        """Add a piece to the files of the loop, whose worker has got on. Raises `LeaseLost`."""
        self.record.add_file(tx, f"{self.place}/{name}", named_file(stored))


@attrs.define
class ScoresOfAnswer(TeacherScores):
    """What the teacher says of one answer of a group."""

    pieces: GroupPieces
    name: str
    stored: StoredArtifact | None = None
    added: bool = False

    def find(self, ids: Sequence[int]) -> Sequence[TokenLogprob] | None:
        found = self.pieces._find(self.name)
        kept = None if found is None else json.loads(found)
        if kept is None or kept["ids"] != list(ids):  # those of other answers, whose file was lost
            return None
        return structure(tuple[TokenLogprob, ...], kept["scores"])

    def write(self, ids: Sequence[int], scores: Sequence[TokenLogprob]) -> None:
        data = {"ids": list(ids), "scores": unstructure(tuple(scores))}
        self.stored, self.added = self.pieces.record.put(iter([json.dumps(data).encode()])), False

    def keep(self, tx: Tx) -> None:
        """Add what was written, unless the loop was taken away: what was paid is booked whoever runs it."""
        assert self.stored is not None
        try:
            fenced(tx, self.pieces.record.claimed.claim)
        except LeaseLost:
            return
        self.pieces._add(tx, self.name, self.stored)
        self.added = True

    def kept(self) -> None:
        if self.stored is not None and self.added:
            self.pieces.record.named(self.stored)
