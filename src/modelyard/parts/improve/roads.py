"""The roads to better answers, as values: a prompt that is optimised, and weights that are trained."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from modelyard.domain.record import frozen_mapping
from modelyard.errors import InvalidInput, nearest

PROMPT_ROAD, SFT_ROAD, RL_ROAD, DISTIL_ROAD = "prompt", "sft", "rl", "distil"


@attrs.frozen
class Road:
    """One way to improve a variant: its `kind`, the options of its job, and the `rows` that it learns from, None for
    what the tasks give."""

    kind: str
    options: Mapping[str, Any] = attrs.field(converter=frozen_mapping)
    rows: tuple[Mapping[str, Any], ...] | None = None


class Roads:
    """Makes the roads: `platform.improve.sft()` and the like."""

    @staticmethod
    def prompt(*, reflection: str, **options: Any) -> Road:
        """Optimise the system text: a job of `training.prompt`, with its options."""
        return Road(PROMPT_ROAD, {"reflection": reflection, **options})

    @staticmethod
    def sft(data: Iterable[Mapping[str, Any]] | None = None, **options: Any) -> Road:
        """Fine-tune the model: a job of `training.sft`, with its options. `data` are its rows, by default the tasks
        with their `expected` answers, under the prompt of the variant. Raises `InvalidInput`."""
        if data is not None and (isinstance(data, str | Mapping) or not isinstance(data, Iterable)):
            raise InvalidInput.at("data", msg="must be rows, each a mapping")
        return Road(SFT_ROAD, options, None if data is None else tuple(data))

    @staticmethod
    def rl(**options: Any) -> Road:
        """Reward the model for its answers: a job of `training.loop`, with its options."""
        return Road(RL_ROAD, options)

    @staticmethod
    def distil(*, teacher: str, **options: Any) -> Road:
        """Have the model answer as `teacher` does: a job of `training.loop` with a teacher, and its options."""
        return Road(DISTIL_ROAD, {"teacher": teacher, **options})


_MADE: Mapping[str, Callable[..., Road]] = {
    PROMPT_ROAD: Roads.prompt,
    SFT_ROAD: Roads.sft,
    RL_ROAD: Roads.rl,
    DISTIL_ROAD: Roads.distil,
}
_NEEDED = {PROMPT_ROAD: "reflection", DISTIL_ROAD: "teacher"}


def road_of(given: Road | Mapping[str, Any] | str) -> Road:
    """Return a road, which may also be given by its name, such as "sft", or as data, such as {"road": "prompt",
    "reflection": "big-model"}, with the options beside the name. Raises `InvalidInput`."""
    if isinstance(given, Road):
        kind, options = given.kind, dict(given.options)
    elif isinstance(given, str | Mapping):
        options = {"road": given} if isinstance(given, str) else dict(given)
        kind = options.pop("road", None)
        if not isinstance(kind, str) or kind not in _MADE:
            msg = f"must be one of {', '.join(_MADE)}{nearest(kind, _MADE) if isinstance(kind, str) else ''}"
            raise InvalidInput.at("road", msg=msg)
    else:
        raise InvalidInput.at(msg='must be a road, such as "sft" or {"road": "prompt", "reflection": "big-model"}')
    needed = _NEEDED.get(kind)
    if needed is not None and options.get(needed) is None:
        raise InvalidInput.at(needed, msg=f"is required: the name of a model, for the road {kind}")
    return given if isinstance(given, Road) else _MADE[kind](**options)
