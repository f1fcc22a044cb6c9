"""The training methods: a row for each."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import attrs

from modelyard.domain.job import JobKind
from modelyard.domain.models import Model
from modelyard.domain.training_config import (
    DistillConfig,
    DistillOptions,
    DPOConfig,
    DPOOptions,
    RLConfig,
    RLOptions,
    SFTConfig,
    SFTOptions,
    TrainingConfig,
)
from modelyard.formats.converter import structure, unstructure
from modelyard.formats.json import as_json
from modelyard.formats.training_data import EXAMPLES, GROUPS, PREFERENCES, TAUGHT, RowFormat
from modelyard.protocols import Trainer


@attrs.frozen
class Method:
    """One training method: the configuration and the rows that it takes. A trainer knows the method by the value of its
    `kind`. `options` are the keywords of a request."""

    kind: str
    config: type[TrainingConfig]
    options: type
    rows: RowFormat[Any]

    def of(self, trainers: Iterable[Trainer], base_model: str) -> "Method":
        """Return the method with the configuration that the trainer of a base model brings, if it brings one."""
        known = next((found for one in trainers if self.kind in (found := one.methods(base_model))), ())
        own = known[self.kind] if isinstance(known, Mapping) else None
        return attrs.evolve(self, config=own) if isinstance(own, type) else self


C = TypeVar("C", bound=TrainingConfig)


def resolved(config: type[C], options: Mapping[str, Any]) -> C:
    """Return the configuration that these options of a host make. Raises `InvalidInput`, for wrong types too."""
    data = {name: unstructure(as_json(value, at=(name,))) for name, value in options.items()}
    structure(config, data)
    return config.resolve(data)


@attrs.frozen
class JobRequest:
    method: Method
    model: Model
    config: TrainingConfig
    idempotency_key: str | None
    needs: Mapping[str, Any]


METHODS: Mapping[str, Method] = {
    method.kind: method
    for method in (
        Method(JobKind.SFT, SFTConfig, SFTOptions, EXAMPLES),
        Method(JobKind.RL, RLConfig, RLOptions, GROUPS),
        Method(JobKind.DPO, DPOConfig, DPOOptions, PREFERENCES),
        Method(JobKind.DISTILL, DistillConfig, DistillOptions, TAUGHT),
    )
}
