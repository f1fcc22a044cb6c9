"""Training base models from local folders: low-rank adapters on a frozen network."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from modelyard.causal_lm.chat import Chat
from modelyard.causal_lm.lora import CONFIG_FILE, WEIGHTS_FILE, LoraShape
from modelyard.causal_lm.network import Network
from modelyard.causal_lm.tensors import read_tensors
from modelyard.domain.base_model import BaseModel
from modelyard.domain.training import Example, TrajectoryGroup
from modelyard.domain.training_config import RLConfig, SFTConfig
from modelyard.errors import TrainingError
from modelyard.protocols import TrainContext, Trainer, TrainItem
from modelyard.trainers import loop
from modelyard.trainers.local.learner import MOMENTS_FILE, LocalLearner
from modelyard.trainers.local.lora import TrainedAdapter

SAVE_EVERY = 20


class LocalTrainer:
    """Trains the base models in `base_models`, which may grow, by adapters of `shape`.

    A checkpoint is a plain adapter folder. A state is saved every `save_every` steps. On one machine, with the same
    number of torch's threads, the same job gives the same files.
    """

    def __init__(
        self,
        base_models: Sequence[BaseModel],
        *,
        shape: LoraShape | None = None,
        device: str | None = None,
        save_every: int = SAVE_EVERY,
    ) -> None:
        self._base_models, self._shape, self._save_every = base_models, shape or LoraShape(), save_every
        self._device = device or ("cuda" if torch.cuda.is_available() else "cpu")

    def trains(self, base_model: str) -> bool:
        """Whether it is one of the base models."""
        return any(base.id == base_model for base in self._base_models)

    def sft(self, config: SFTConfig, data: Iterable[Example], context: TrainContext) -> Iterator[TrainItem]:
        """Imitate examples: see `modelyard.trainers.loop.imitate`."""
        learner = self._learner(context)[0]
        yield from loop.imitate(learner, config, data, context.resume_step, self._save_every)

    def rl(self, config: RLConfig, data: Iterable[TrajectoryGroup], context: TrainContext) -> Iterator[TrainItem]:
        """Learn from rewards: see `modelyard.trainers.loop.reinforce`."""
        learner, adapter = self._learner(context)
        compared = config.kl_penalty_coef or config.kl_penalty_reference_step is not None
        policies = loop.Policies(
            _weights_of(adapter, context.parent_files, context.parent) if config.precalculate_logprobs else None,
            _weights_of(adapter, context.reference_files, context.reference) if compared else None,
        )
        yield from loop.reinforce(learner, config, data, policies, context.resume_step, self._save_every)

    def _learner(self, context: TrainContext) -> tuple[LocalLearner, TrainedAdapter]:
        """What goes on from the saved state, or else starts from the parent."""
        folder = self._folder(context.base_model)
        network = Network(folder, self._device)
        adapter = TrainedAdapter(network.model, self._shape_of(context), context.seed)
        learner = LocalLearner(Chat(folder), network, adapter, context.base_model)
        if context.resume_step and context.resume is not None:
            adapter.load(_read(context.resume, WEIGHTS_FILE))
            learner.resume(_read(context.resume, MOMENTS_FILE))
        elif WEIGHTS_FILE in context.parent_files:
            adapter.load(_read(context.parent, WEIGHTS_FILE))
        return learner, adapter

    def _shape_of(self, context: TrainContext) -> LoraShape:
        if CONFIG_FILE not in context.parent_files:
            return self._shape
        with context.parent(CONFIG_FILE) as file:
            return LoraShape.from_config(file.read())

    def _folder(self, id: str) -> Path:
        for base in self._base_models:
            if base.id == id:
                return Path(base.path)
        raise TrainingError(f"the base model {id!r} is not here; add it again with add_base_model")


def _read(open_file: Callable[[str], BinaryIO], name: str) -> Mapping[str, Tensor]:
    try:
        with open_file(name) as file:
            return read_tensors(file)
    except ValueError as fault:
        raise TrainingError(f"{name} cannot be read ({fault}); delete that checkpoint and train again") from fault


class _weights_of:  # noqa: N801 - reads as what it is: a context
    """Puts the weights of a checkpoint in the place of the adapter's, as long as the context is entered; none of its
    files is the untouched base."""

    def __init__(
        self, adapter: TrainedAdapter, files: frozenset[str], open_file: Callable[[str], BinaryIO] | None
    ) -> None:
        self._adapter = adapter
        if open_file is None or WEIGHTS_FILE not in files:
            self._weights = _zeros(adapter)
        else:
            self._weights = _read(open_file, WEIGHTS_FILE)
        self._before: dict[str, Tensor] = {}

    def __enter__(self) -> None:
        self._before = {name: tensor.clone() for name, tensor in self._adapter.tensors().items()}
        self._adapter.load(self._weights)

    def __exit__(self, *_: object) -> None:
        self._adapter.load(self._before)


def _zeros(adapter: TrainedAdapter) -> Mapping[str, Tensor]:
    return {name: torch.zeros_like(tensor) for name, tensor in adapter.tensors().items()}


_: type[Trainer] = LocalTrainer
