"""Trajectories with `exchanges`: read strictly, as the histories that they are."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import attrs

from modelyard.domain.training import History, Trajectory
from modelyard.errors import InvalidInput
from modelyard.formats.constraints import hint
from modelyard.formats.converter import structure_exactly
from modelyard.formats.trajectories import trajectory_of
from modelyard.parts.exchanges import kinds
from modelyard.parts.exchanges.branches import RecordedTurn, histories_of

_EARLIEST = datetime.min.replace(tzinfo=UTC)
_LEGACY = ("messages_and_choices", "tools", "additional_histories")


def _check_time(instance: object, attribute: Any, value: str | None) -> None:
    if value is not None:
        datetime.fromisoformat(value)


@attrs.frozen
class RecordedExchange:
    """One request of a rollout and its answer, in the format of their address."""

    request: Mapping[str, Any]
    response: Mapping[str, Any]
    start_time: str | None = attrs.field(default=None, validator=_check_time)
    end_time: str | None = attrs.field(default=None, metadata=hint("exchanges are in the order in which they began"))
    model: str | None = attrs.field(default=None, metadata=hint("the request has it, too"))

    @property
    def began(self) -> datetime:
        if self.start_time is None:
            return _EARLIEST
        began = datetime.fromisoformat(self.start_time)
        return began if began.tzinfo else began.replace(tzinfo=UTC)


@attrs.frozen
class Exchanges:
    """The exchanges of a trajectory, by their format."""

    chat_completions: tuple[RecordedExchange, ...] = ()
    completions: tuple[RecordedExchange, ...] = ()
    responses: tuple[RecordedExchange, ...] = ()
    messages: tuple[RecordedExchange, ...] = ()


def read_trajectory(data: Any, trained: bool = False) -> Trajectory:
    """Read a trajectory in either form, with `trained` only if the tokens are known of what is trained. Raises
    `InvalidInput`."""
    if not isinstance(data, dict) or "exchanges" not in data:
        return trajectory_of(data)
    given = structure_exactly(Exchanges, data["exchanges"] or {}, "exchanges")
    rest = {name: value for name, value in data.items() if name != "exchanges"}
    if given == Exchanges():
        return trajectory_of(rest)
    for name in _LEGACY:
        if rest.pop(name, None):
            raise InvalidInput.at(name, msg="cannot be combined with exchanges")
    read = trajectory_of({**rest, "messages_and_choices": []})
    histories = [
        *histories_of(_turns("chat_completions", given.chat_completions, kinds.chat_completion)),
        *_prompts(given.completions),
        *histories_of(_turns("responses", given.responses, kinds.ResponseChain().turn)),
        *histories_of(_turns("messages", given.messages, partial(kinds.message, trained=trained))),
    ]
    return attrs.evolve(read, histories=tuple(histories))


Reader = Callable[[Mapping[str, Any], Mapping[str, Any]], Any]


def _turns(kind: str, exchanges: Sequence[RecordedExchange], read: Reader) -> list[RecordedTurn]:
    return [_read(kind, at, one, read) for at, one in _in_order(exchanges)]


def _prompts(exchanges: Sequence[RecordedExchange]) -> list[History]:
    read = [_read("completions", at, one, kinds.completion) for at, one in _in_order(exchanges)]
    return [History((choice,)) for choices in read for choice in choices]


def _in_order(exchanges: Sequence[RecordedExchange]) -> list[tuple[int, RecordedExchange]]:
    return sorted(enumerate(exchanges), key=lambda one: one[1].began)


def _read(kind: str, at: int, exchange: RecordedExchange, read: Reader) -> Any:
    try:
        return read(exchange.request, exchange.response)
    except InvalidInput as wrong:
        raise wrong.below("exchanges", kind, at) from None
