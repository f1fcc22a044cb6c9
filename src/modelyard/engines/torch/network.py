"""The network of a base model, loaded from its folder and never changed: adapters and caches are put beside it."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_outputs import MoeModelOutputWithPast
from transformers.utils import logging as transformers_logging

from modelyard.engines.torch.hf_cache import OwnCache, read_jointly
from modelyard.engines.torch.kv_cache import Mask, RowCache, narrower, suits
from modelyard.errors import BackendError, Overloaded
from modelyard.formats.model_config import context_length

_SUMS_IN_32_BITS = "dtype" in torch.ops.aten.mm.overloads()


def logits(head: nn.Module, hidden: Tensor) -> Tensor:
    """Logits (... x vocabulary) of hidden states (... x size). Weights that are trained themselves are to have 32 bits:
    others are used as they are, and their sums rounded."""
    weight = head.weight if type(head) is nn.Linear else None
    if weight is None or weight.dtype is torch.float32 or weight.requires_grad:
        return head(hidden).float()
    found = _Logits.apply(hidden.flatten(0, -2).to(weight.dtype), weight).unflatten(0, hidden.shape[:-1])
    return found if head.bias is None else found + head.bias.float()


def body_name(model: Any) -> str:
    """Under which name a model has its body: some families do not keep to what they say."""
    prefix: str = model.base_model_prefix
    return prefix if prefix in model._modules else "model"


class OwnHead(nn.Module):
    """All that a model does behind its body, where that is more than to apply its head: it scales logits, or caps them.

    It is the model itself, with a body that takes hidden states for what they are.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        head, own = model.get_output_embeddings(), copy.copy(model)
        wide = {name: _Wide(head) for name, module in model._modules.items() if module is head}
        own._modules = {**model._modules, **wide, body_name(model): _Given()}
        self.model = own

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits (... x vocabulary) of hidden states (... x size)."""
        found = self.model(inputs_embeds=hidden.flatten(0, -2)[None], use_cache=False).logits[0]
        return found.float().unflatten(0, hidden.shape[:-1])


class _Given(nn.Module):
    """A body that is given its hidden states."""

    def forward(self, *, inputs_embeds: Tensor, **_: Any) -> MoeModelOutputWithPast:
        return MoeModelOutputWithPast(last_hidden_state=inputs_embeds)


class _Wide(nn.Module):
    """A head in 32-bit floats."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, hidden: Tensor) -> Tensor:
        return logits(self.head, hidden)


class _Logits(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, hidden: Tensor, weight: Tensor) -> Tensor:
        context.save_for_backward(weight)
        if hidden.is_cuda and _SUMS_IN_32_BITS:
            return torch.mm(hidden, weight.T, out_dtype=torch.float32)
        return hidden.float() @ weight.float().T

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (weight,) = context.saved_tensors
        return gradient.to(weight.dtype) @ weight, None


T = TypeVar("T")

FULL_FILE = "model.safetensors"
"""The file of a checkpoint that holds all weights of a network; those that two layers share are there once."""


CHECKED = 48
"""Tokens of the text with which a network is checked when it is loaded."""


class Network:
    """A transformers model in memory, without gradients.

    `weights` take the place of those in the folder. Shapes: rows x tokens x hidden size.
    """

    def __init__(
        self,
        folder: Path,
        device: str = "cpu",
        dtype: torch.dtype | None = None,
        weights: Mapping[str, Tensor] | None = None,
    ) -> None:
        transformers_logging.disable_progress_bar()
        dtype = dtype or _usual_dtype(device)
        try:
            model: Any = _stored(folder, dtype) if weights is None else _tuned(folder, dtype, weights)
            self.model = model.eval().requires_grad_(False).to(device)
        except Exception as fault:
            raise _not_loaded(folder, fault) from fault
        self.config = self.model.config.get_text_config(decoder=True)
        self.device, self.dtype = self.model.device, self.model.dtype
        self._own_head: OwnHead | None = None
        self.in_rows, self.keeps, self.joins = False, False, False
        """Whether many sequences can lie side by side in the rows of one cache; else whether each can have its own, and
        whether a token more can be read of many at a time then."""
        self._check()

    @property
    def context_length(self) -> int:
        """How many tokens a sequence may have."""
        return context_length(self.config.to_dict())

    @property
    def vocabulary(self) -> int:
        """How many tokens it knows. A graphics card that is asked for one beyond them does nothing any more."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    @property
    def body(self) -> Any:
        """What maps tokens to hidden states."""
        return getattr(self.model, body_name(self.model))

    def hidden(self, ids: Tensor, positions: Tensor, mask: Mask, cache: Any) -> Tensor:
        """Hidden states of new tokens (rows x tokens) at these positions.

        Positions and `mask` are those that `cache` gives when the pass begins.
        """
        states = self.body(
            input_ids=ids, position_ids=positions, attention_mask=mask, past_key_values=cache, use_cache=True
        )
        return states.last_hidden_state

    def own_cache(self) -> OwnCache:
        """A cache for one sequence."""
        return OwnCache(self.body, self.keeps)

    def read_jointly(self, caches: Sequence[OwnCache], ids: Tensor) -> Tensor:
        """Hidden states of a token more (rows x 1) for each of these caches."""
        return read_jointly(self.body, self.config, caches, ids, self.dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits in 32-bit floats, whatever the weights are."""
        if self._own_head is not None:
            found: Tensor = self._own_head(hidden)
            return found
        return logits(self.model.get_output_embeddings(), hidden)

    # ---- how it is run

    def _check(self) -> None:
        """Whether hidden states and head, each used for itself, make what the whole model does, and whether they do so
        with a cache. Raises `BackendError` where they do not.
        """
        ids = torch.arange(min(CHECKED, self.context_length), device=self.device)[None] * 7919 % self.config.vocab_size
        try:
            with torch.inference_mode(), _narrow(self.config, ids.shape[1] // 3):
                whole = self.model(ids, use_cache=False).logits[0].float()
                self._choose_head(self.body(input_ids=ids, use_cache=False).last_hidden_state[0], whole)
                self.in_rows = suits(self.config) and self._found_right(self._in_rows, ids, whole)
                self.keeps = not self.in_rows and self._found_right(self._in_own_cache, ids, whole)
                self.joins = self.keeps and self._found_right(self._jointly, ids, whole)
        except Exception as fault:
            kind = Overloaded if out_of_memory(fault) else BackendError
            raise kind(f"{type(self.model).__name__} cannot be run here: {first_line(fault)}") from fault

    def _choose_head(self, states: Tensor, whole: Tensor) -> None:
        """The head alone, or all that the model does behind its body, where that is more."""
        found, own = self.logits(states), OwnHead(self.model)
        more = _tried(own, states)
        if more is not None and float((more - found).abs().max()) > 1e-5 * float(found.abs().max()):
            self._own_head, found = own, more
        if not self._alike(found, whole):
            raise BackendError("it makes its logits in a way of its own")

    def _found_right(self, way: Callable[[Tensor], tuple[Tensor, list[int]]], ids: Tensor, whole: Tensor) -> bool:
        """Whether a way to read tokens gives the logits of the whole model, at the places that it looks at."""
        tried = _tried(way, ids)
        return tried is not None and self._alike(tried[0], whole[tried[1]])

    def _alike(self, found: Tensor, whole: Tensor) -> bool:
        """In 16 bits deep networks, and experts chosen by a hair, differ by some hundredths; what is wrong by more."""
        tolerance = 1e-3 if self.dtype is torch.float32 else 0.15
        return float((found - whole).abs().max()) <= tolerance * max(1.0, float(whole.abs().max()))

    def _in_rows(self, ids: Tensor) -> tuple[Tensor, list[int]]:
        """The first and the last token of a row, as serving reads them: the last when the others are in the cache,
        beside a row that begins."""
        cache = RowCache(self.config, 2, ids.shape[1], self.dtype, self.device)
        self.hidden(ids[:, :-1], *cache.begin(0, [0], ids.shape[1] - 1), cache)
        ends = ids[:, [-1, 0]].T
        return self.logits(self.hidden(ends, *cache.begin(0, [ids.shape[1] - 1, 0], 1), cache))[:, 0], [-1, 0]

    def _in_own_cache(self, ids: Tensor) -> tuple[Tensor, list[int]]:
        """The same two, the last by itself."""
        cache = OwnCache(self.body)
        first = cache.read(ids[:, :-1])[0, :1]
        return self.logits(torch.cat([first, cache.read(ids[:, cache.seen :])[0, -1:]])), [0, -1]

    def _jointly(self, ids: Tensor) -> tuple[Tensor, list[int]]:
        """Two tokens more of three beginnings, side by side: the first is not the longest, nor the shortest."""
        places = [ids.shape[1] // 2, ids.shape[1] - 1, 3]
        caches = [self.own_cache() for _ in places]
        for place, cache in zip(places, caches, strict=True):
            cache.read(ids[:, : place - 1])
        for back in (1, 0):
            states = self.read_jointly(caches, torch.stack([ids[0, [place - back]] for place in places]))
        return self.logits(states)[:, 0], places


def _tried(way: Callable[[Tensor], T], given: Tensor) -> T | None:
    """What comes of it, or nothing where it is not for this model."""
    try:
        return way(given)
    except Exception as fault:
        if out_of_memory(fault):
            raise
        return None


@contextmanager
def _narrow(config: Any, window: int) -> Iterator[None]:
    """Makes the window, where there is one, so narrow that it tells in a short text."""
    own = narrower(config)
    if own is None:
        yield
        return
    config.sliding_window = min(own, max(1, window))
    try:
        yield
    finally:
        config.sliding_window = own


def out_of_memory(fault: BaseException) -> bool:
    """Whether there is no memory left, on a graphics card or beside it."""
    return isinstance(fault, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(fault)


def first_line(fault: BaseException) -> str:
    """What a fault says, without the advice that some give at length. After a colon the next line is read too."""
    first, *further = str(fault).splitlines() or [type(fault).__name__]
    return f"{first} {further[0].strip()}" if further and first.endswith(":") else first


def _not_loaded(folder: Path, fault: Exception) -> BackendError:
    if out_of_memory(fault):
        return Overloaded("there is no memory to load this model; ask again when others are done, or the host for more")
    return BackendError(f"the base model in {folder.name!r} cannot be loaded: {first_line(fault)}")


def _stored(folder: Path, dtype: torch.dtype) -> Any:
    """Raises ValueError when weights are missing or of other shapes: transformers would draw them at random."""
    model, told = AutoModelForCausalLM.from_pretrained(
        folder,
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
        dtype=dtype,
    )
    odd = sorted({*told["missing_keys"], *(name for name, *_ in told["mismatched_keys"])})
    if odd:
        raise ValueError(f"its weights are not those that config.json asks for (for one, {odd[0]})")
    return model


def _tuned(folder: Path, dtype: torch.dtype, weights: Mapping[str, Tensor]) -> Any:
    """The same architecture with other weights. Raises ValueError when they are of something else."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    with torch.random.fork_rng(devices=[]):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    named = dict(model.named_parameters())
    odd = sorted(named.keys() ^ weights.keys()) or [
        name for name, tensor in weights.items() if named[name].shape != tensor.shape
    ]
    if odd:
        raise ValueError(f"the weights are those of another model (for one, {odd[0]})")
    model.load_state_dict(weights, strict=False)
    return model


def _usual_dtype(device: str) -> torch.dtype:
    """Processors compute 32-bit floats about as fast as 16-bit ones, graphics cards twice to ten times slower."""
    return torch.float32 if torch.device(device).type == "cpu" else torch.bfloat16
