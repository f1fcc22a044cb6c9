"""Training of base models in local folders: low-rank adapters on a frozen network, or all weights of a small one."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import attrs

from modelyard.errors import BackendError, MissingExtra, TrainingError

try:
    import torch
    from torch import Tensor
except ImportError as error:
    raise MissingExtra("torch", "torch") from error

from modelyard.domain.training_run import AdapterConfig
from modelyard.parts.torch.lora import CONFIG_FILE, LoraShape, read_tensors
from modelyard.parts.torch.model_folder import check_unchanged
from modelyard.parts.torch.network import Network
from modelyard.parts.torch.records import BaseModel, Tuning, WeightFormat
from modelyard.parts.torch.threads import torch_threads
from modelyard.parts.torch.tokenizer import ChatTokenizer
from modelyard.parts.torch.training.arranged import BEST_FILE, EarlyStop, arranged
from modelyard.parts.torch.training.learner import LocalLearner
from modelyard.parts.torch.training.local_run import LocalRun
from modelyard.parts.torch.training.memory_plan import MemoryBudget, check_weights, free_memory, need_of
from modelyard.parts.torch.training.options import CONFIGS, AdapterOptions, with_own_options
from modelyard.parts.torch.training.parallel import ParallelLearner
from modelyard.parts.torch.training.ranks import Ranks, RankSetup, other_ranks
from modelyard.parts.torch.training.reading import Survey, Surveyed
from modelyard.parts.torch.training.row_learner import MOMENTS_FILE
from modelyard.parts.torch.training.shared_base import SharedBase, SharedBases
from modelyard.parts.torch.training.token_logprobs import TokenScorer
from modelyard.parts.torch.training.trainable import (
    AdapterWeights,
    TrainableWeights,
    Weights,
    all_weights,
    attach_adapter,
)
from modelyard.protocols import Started, StepTrainer, TrainContext, Trainer, TrainItem
from modelyard.trainers import loop
from modelyard.trainers.methods import LEARNER_METHODS

SAVE_EVERY = 20
KEEP_BASE = 60.0

_BYTES: Mapping[WeightFormat, int] = {WeightFormat.FLOAT32: 4, WeightFormat.BFLOAT16: 2, WeightFormat.INT8: 1}


class LocalTrainer:
    """Trains the base models in `base_models`, a list that may grow, by adapters of `shape` or in full.

    A job may take `memory` bytes, weights included; by default the memory that is free when it begins. A state is saved
    every `save_every` steps. The rows of each step are spread over `ranks` processes of this machine: one for each
    graphics card, or on a processor each with an equal part of the memory. On one machine, with the same number of
    ranks and of torch's threads, equal jobs give equal files; small models are trained in one thread. The base model of
    runs stays in memory for `keep_base` seconds after the last of them, unless a job or another base model needs the
    room.
    """

    def __init__(
        self,
        base_models: Sequence[BaseModel],
        *,
        shape: LoraShape | None = None,
        device: str | None = None,
        memory: int | None = None,
        save_every: int = SAVE_EVERY,
        ranks: int = 1,
        keep_base: float = KEEP_BASE,
    ) -> None:
        self._base_models, self._shape, self._save_every = base_models, shape or LoraShape(), save_every
        self._device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self._memory, self._ranks = memory, ranks
        self._bases = SharedBases(keep_base)

    def methods(self, base_model: str) -> Collection[str]:
        """Return all methods for the base models."""
        return CONFIGS if any(base.id == base_model for base in self._base_models) else ()

    def train(self, method: str, config: Any, data: Iterable[Any], context: TrainContext) -> Iterator[TrainItem]:
        """Train by one of `modelyard.trainers.methods`."""
        chosen, config = LEARNER_METHODS[method], with_own_options(method, config)
        context = context if config.seed is None else attrs.evolve(context, seed=config.seed)
        compared, patience = chosen.compares(config), getattr(config, "early_stopping_patience", None)
        copies = len(compared) + (patience is not None)
        with self._base_learner(context, copies, config) as (learner, trained):
            policies = loop.Policies(
                _weights(trained, context.parent_files, context.parent) if "parent" in compared else None,
                _weights(trained, context.reference_files, context.reference) if "reference" in compared else None,
            )
            _begin(learner, trained, context)
            learner.read_as(config)
            rows = arranged(config, data, context.held_out, context.seed)
            if rows.file_rows is not None:  # a bad row is refused by its place in the file
                chosen.plan(learner, config.for_one_epoch(), rows.file_rows, policies, 0, ())
            read = Surveyed(rows.rows, learner)
            plan = chosen.plan(learner, config, read, policies, context.resume_step, rows.held_out)
            stop = None if patience is None else _stopping(learner, trained, patience, context)
            plan = plan if stop is None else stop.plan(plan)
            items: Iterator[TrainItem] = loop.run(learner, plan, self._save_every)
            items = items if stop is None else stop.told(items)
            about = {"base_model": context.base_model, **_about(learner, trained, config, read.survey)}
            next(items)
            yield Started(plan.total, about)
            yield from items

    # ---- runs that their callers drive

    def open_run(
        self, base_model: str, adapter: AdapterConfig, files: frozenset[str], open_file: Callable[[str], BinaryIO]
    ) -> LocalRun:
        """Open a run, in this process: its base model is in memory once for all runs, however many ranks jobs have."""
        base = self._base_model(base_model)
        if base.tuning is Tuning.FULL:
            raise TrainingError(
                f"the base model {base_model!r} is trained in full, without adapters; add it again under another id"
            )
        with self._within(base):
            shared, weights, room = self._adapter_of_run(base, adapter, files, open_file)
            close = partial(self._end, base.id, shared, weights)
            run = LocalRun(shared, weights, room, base.context_length, partial(self._within, base), close)
            try:
                if files:
                    weights.load(_weights(weights, files, open_file))
                if MOMENTS_FILE in files:
                    run.resume(_read(open_file, MOMENTS_FILE))
            except BaseException:
                run.close()
                raise
            return run

    def _adapter_of_run(
        self, base: BaseModel, config: AdapterConfig, files: frozenset[str], open_file: Callable[[str], BinaryIO]
    ) -> tuple[SharedBase, AdapterWeights, MemoryBudget]:
        def load() -> SharedBase:
            limit = free_memory(self._device) if self._memory is None else self._memory
            check_unchanged(base)
            check_weights(base.parameters, _bytes_each(base, self._device), limit)
            return SharedBase(Network(Path(base.path), self._device, form=base.weights), limit)

        def make(shared: SharedBase) -> tuple[SharedBase, AdapterWeights, MemoryBudget]:
            shape = _shape_in(files, open_file) or shared.resolve(config)
            return shared, *shared.add(shape, config.seed, base.id)

        return self._bases.use(base.id, load, make)

    def _end(self, id: str, shared: SharedBase, weights: AdapterWeights) -> None:
        shared.remove(weights)
        self._bases.ended(id)

    @contextmanager
    def _within(self, base: BaseModel) -> Iterator[None]:
        with torch_threads(1 if base.small else None), _as_training_errors():
            yield

    # ---- jobs

    @contextmanager
    def _base_learner(
        self, context: TrainContext, copies: int, config: Any = None
    ) -> Iterator[tuple[LocalLearner, TrainableWeights]]:
        """Yield the base model and its trainable parameters for the duration of a job, with memory for `copies` of the
        parameters.

        Raises `TrainingError`, also if the job does not fit into the memory; `BackendError` if the base model cannot be
        loaded, as another attempt may load it.
        """
        base = self._base_model(context.base_model)
        full, folder = base.tuning is Tuning.FULL, Path(base.path)
        self._bases.free()
        with self._within(base):
            limit = self._limit()
            check_unchanged(base)
            check_weights(base.parameters, _bytes_each(base, self._device), limit)
        with torch_threads(1 if base.small else None):
            network = Network(folder, self._device, torch.float32 if full else None, own=full, form=base.weights)
        with self._within(base):
            shape = self._shape_of(context, config, full)
            model = network.model
            trained = attach_adapter(model, shape, context.seed, base.id) if shape else all_weights(model)
            scorer = TokenScorer(network)
            room = MemoryBudget(need_of(network, scorer, trained.parameters, copies), limit)
            parts = ChatTokenizer(folder), scorer, trained, room, base.context_length
            if self._ranks == 1:
                yield LocalLearner(*parts), trained
                return
            setup = RankSetup(
                base.path, self._device, shape, base.weights, base.id, torch.get_num_threads(), self._ranks
            )
            with other_ranks(setup):
                yield ParallelLearner(*parts, Ranks(scorer, trained.parameters)), trained

    def _limit(self) -> int | None:
        limit = free_memory(self._device) if self._memory is None else self._memory
        shared = torch.device(self._device).type == "cpu"
        return limit // self._ranks if shared and limit is not None else limit

    def _shape_of(self, context: TrainContext, config: Any, full: bool) -> LoraShape | None:
        """Return the shape of the adapter: that of the parent, or of the job. None if all weights are trained. Raises
        `TrainingError` for a shape that the job cannot have.
        """
        chosen = config if isinstance(config, AdapterOptions) and config.shapes else None
        if full and chosen:
            raise TrainingError(
                f"the base model {context.base_model!r} is trained in full, without adapters: leave out lora_rank, "
                "lora_alpha and lora_targets, or add it again under another id"
            )
        if full:
            return None
        kept = _shape_in(context.parent_files, context.parent)
        shape = kept or self._shape
        asked = shape if chosen is None else chosen.shape(shape)
        if kept is not None and asked != kept:
            raise TrainingError(
                f"the model has an adapter of rank {kept.rank} and alpha {kept.alpha} on {', '.join(kept.targets)}, "
                "which a job continues: leave out lora_rank, lora_alpha and lora_targets, or train a new model"
            )
        return asked

    def _base_model(self, id: str) -> BaseModel:
        for base in self._base_models:
            if base.id == id:
                return base
        raise TrainingError(f"the base model {id!r} is not here; add it again with add_base_model")


def _shape_in(files: frozenset[str], open_file: Callable[[str], BinaryIO]) -> LoraShape | None:
    if CONFIG_FILE not in files:
        return None
    with open_file(CONFIG_FILE) as file:
        return LoraShape.from_config(file.read())


def _bytes_each(base: BaseModel, device: str) -> int:
    """Return the bytes of nearly all weights: networks on graphics cards are stored in 16 bits, unless they are trained
    or another format is asked for.
    """
    usual = 2 if torch.device(device).type == "cuda" and base.tuning is not Tuning.FULL else 4
    return usual if base.weights is None else _BYTES[base.weights]


@contextmanager
def _as_training_errors() -> Iterator[None]:
    try:
        yield
    except BackendError as fault:
        raise TrainingError(str(fault)) from fault
    except torch.OutOfMemoryError as fault:
        raise TrainingError(
            "the card's memory ran out; give the trainer less with LocalTrainer(memory=...), so that it takes smaller "
            "passes, or train on shorter rows"
        ) from fault


# ---- initial weights ---------------------------------------------------------------------------------------------


def _begin(learner: LocalLearner, trained: TrainableWeights, context: TrainContext) -> None:
    if context.resume_step and context.resume is not None:
        trained.load(_read(context.resume, trained.file))
        learner.resume(_read(context.resume, MOMENTS_FILE))
    elif context.parent_files:
        trained.load(_weights(trained, context.parent_files, context.parent))


def _stopping(learner: LocalLearner, trained: TrainableWeights, patience: int, context: TrainContext) -> EarlyStop:
    found = EarlyStop(trained, patience)
    if context.resume is not None and BEST_FILE in context.resume_files:
        found.resume(partial(_read, context.resume))
    learner.kept = found.files
    return found


def _about(learner: LocalLearner, trained: TrainableWeights, config: Any, survey: Survey) -> Mapping[str, Any]:
    """Return what a job begins with: its rows, what is trained, and the bytes that it is estimated to take."""
    epochs, rows = getattr(config, "epochs", 1), getattr(config, "rows_per_batch", survey.rows)
    shape = trained.shape if isinstance(trained, AdapterWeights) else None
    return {
        **({} if shape is None else {"lora_rank": shape.rank, "lora_alpha": shape.alpha}),
        "trained_parameters": sum(one.numel() for one in trained.parameters),
        "rows": survey.rows // epochs,
        "tokens": survey.tokens // epochs,
        "longest": survey.longest,
        "truncated": survey.truncated // epochs,
        "dropped": survey.dropped // epochs,
        **learner.placed_on(),
        "memory": learner.estimate(rows, survey.longest),
    }


def _weights(trained: TrainableWeights, files: frozenset[str], open_file: Callable[[str], BinaryIO] | None) -> Weights:
    """Return the weights of a checkpoint; without files, of the base model, which `trained` must still have."""
    if not files or open_file is None:
        return trained.copy()
    if trained.file not in files:
        raise TrainingError(
            f"the checkpoint has no {trained.file}: it belongs to another kind of base model; train a new one"
        )
    weights = _read(open_file, trained.file)
    trained.check(weights)
    return {name: tensor.to(trained.named[name].device) for name, tensor in weights.items()}


def _read(open_file: Callable[[str], BinaryIO], name: str) -> Mapping[str, Tensor]:
    try:
        with open_file(name) as file:
            return read_tensors(file)
    except ValueError as fault:
        raise TrainingError(f"{name} cannot be read ({fault}); delete that checkpoint and train again") from fault


_: type[Trainer] = LocalTrainer
_steps: type[StepTrainer] = LocalTrainer
