"""How much serving a base model may take."""

import attrs

from modelyard.errors import InvalidInput

_SHARE_OF_CARD = 0.4


@attrs.frozen
class Room:
    """The resources that serving one base model may take.

    In each network `rows` sequences run at a time, their keys and values, and those of answers before them, within
    `memory` bytes, and `waiting` more requests may wait. `adapters` checkpoints of up to `rank` are in memory, and
    `tuned` fully fine-tuned checkpoints, each with its own network. Raises `InvalidInput`.
    """

    rows: int = 32
    memory: int = 2**30
    adapters: int = 32
    rank: int = 64
    tuned: int = 2
    waiting: int = 1024

    def __attrs_post_init__(self) -> None:
        for name, amount in attrs.asdict(self).items():
            least = 0 if name == "waiting" else 1
            if amount < least:
                raise InvalidInput.at(name, msg=f"must be {least} or more")

    @classmethod
    def usual(cls, device: str, memory: int | None = None) -> "Room":
        """Return the default for a device: on a graphics card more rows, in a share of the memory that is free now.

        `memory` is in bytes, in place of the default.
        """
        import torch  # noqa: PLC0415 - a limit can be set before it is loaded

        if torch.device(device).type != "cuda":
            return cls() if memory is None else cls(memory=memory)
        return cls(rows=256, memory=memory or int(torch.cuda.mem_get_info(device)[0] * _SHARE_OF_CARD))
