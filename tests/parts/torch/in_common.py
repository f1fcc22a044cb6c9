"""What this part brings to the tests of all parts."""

from modelyard import Platform
from modelyard.domain.record import declaration_of
from modelyard.parts.torch.records import BaseModel
from specimens import specimen


def fill(platform: Platform) -> None:
    record = specimen(declaration_of(BaseModel), platform._principal.entity)
    platform._runtime.store.transact(lambda tx: tx.add(record))
