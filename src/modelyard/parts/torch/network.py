"""The network of a base model, loaded from its folder and never changed: adapters and caches are separate from it."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_outputs import MoeModelOutputWithPast
from transformers.utils import logging as transformers_logging

from modelyard.errors import BackendError, CallerError, Overloaded
from modelyard.parts.torch.hf_cache import JointCache, cache_name
from modelyard.parts.torch.kv_cache import Mask, suits
from modelyard.parts.torch.lean_pass import LeanPass
from modelyard.parts.torch.loading import LOADING, with_shared_weights
from modelyard.parts.torch.lora import LoraLinear
from modelyard.parts.torch.model_config import context_length
from modelyard.parts.torch.narrow_weights import are_numbers, narrow
from modelyard.parts.torch.network_checks import ROUNDING, WayChecks, narrowed, out_of_memory, tried
from modelyard.parts.torch.packed_weights import can_pack, pack
from modelyard.parts.torch.records import WeightFormat

_SUMS_IN_32_BITS = "dtype" in torch.ops.aten.mm.overloads()


def logits(head: nn.Module, hidden: Tensor) -> Tensor:
    """Compute logits (... x vocabulary) from hidden states (... x size).

    Weights in training should have 32 bits: others are used as they are, and their sums are rounded.
    """
    if isinstance(head, LoraLinear):
        found, more = logits(head.base, hidden), head.added(hidden)
        return found if more is None else found + more.float()
    weight = head.weight if type(head) is nn.Linear else None
    if weight is None or weight.dtype is torch.float32 or weight.requires_grad:
        return head(hidden).float()
    found = _Logits.apply(hidden.flatten(0, -2).to(weight.dtype), weight).unflatten(0, hidden.shape[:-1])
    return found if head.bias is None else found + head.bias.float()


def body_name(model: Any) -> str:
    """Return the name of a model's body; some families do not use the one that they declare."""
    prefix: str = model.base_model_prefix
    return prefix if prefix in model._modules else "model"


class ModelHead(nn.Module):
    """Everything that a model does after its body, for models that do more than apply a head: scale logits, or cap
    them.

    It is the model itself, with a body that returns the hidden states it is given.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        head, own = model.get_output_embeddings(), copy.copy(model)
        wide = {name: _Float32Head(model) for name, module in model._modules.items() if module is head}
        own._modules = {**model._modules, **wide, body_name(model): _IdentityBody()}
        self.model = own

    def forward(self, hidden: Tensor) -> Tensor:
        found = self.model(inputs_embeds=hidden.flatten(0, -2)[None], use_cache=False).logits[0]
        return found.float().unflatten(0, hidden.shape[:-1])


class _IdentityBody(nn.Module):
    """A body that returns the hidden states it is given."""

    def forward(self, *, inputs_embeds: Tensor, **_: Any) -> MoeModelOutputWithPast:
        return MoeModelOutputWithPast(last_hidden_state=inputs_embeds)


class _Float32Head(nn.Module):
    """The head that the model has at the time: an adapter may replace it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.head = model.get_output_embeddings

    def forward(self, hidden: Tensor) -> Tensor:
        return logits(self.head(), hidden)


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
"""The file of a checkpoint with all weights of a network; weights that layers share are stored once."""


CHECKED = 48
"""Tokens of the text that checks a network when it is loaded."""


class Network:
    """A transformers model in memory, without gradients.

    `weights` replace those in the folder. Only an `own` network may change its weights: others share them with all
    networks of the same folder, device and type. `form` is the format in which the weights are stored; None for that of
    `dtype`, by default the usual one of the device. Shapes: rows x tokens x hidden size.
    """

    def __init__(
        self,
        folder: Path,
        device: str = "cpu",
        dtype: torch.dtype | None = None,
        weights: Mapping[str, Tensor] | None = None,
        own: bool = False,
        form: WeightFormat | None = None,
    ) -> None:
        transformers_logging.disable_progress_bar()
        dtype = dtype or _usual_dtype(device, form)
        form = form if _is_narrower(form, dtype) else None

        def load() -> Any:
            model: Any
            if form is not None:
                narrow(model := _stored(folder, "auto"), form, dtype)
            else:
                model = _stored(folder, dtype) if weights is None else _tuned(folder, dtype, weights)
            return model.eval().requires_grad_(False).to(device)

        self.model: Any
        self._held: Any = None
        try:
            with LOADING:
                if own or weights is not None:
                    self.model = load()
                else:
                    self.model, self._held = with_shared_weights(folder, device, dtype, form, load)
        except Exception as fault:
            raise _not_loaded(folder, fault) from fault
        self.config: Any = self.model.config.get_text_config(decoder=True)
        self.device: torch.device = self.model.device
        self.dtype: torch.dtype = dtype
        self._own_head: ModelHead | None = None
        self._cache_name = cache_name(self.body)
        self.lean: LeanPass | None = None
        """How tokens are read with a cache of rows, if that is not left to the modules."""
        self.in_rows: bool = False
        self.has_cache: bool = False
        self.can_batch: bool = False
        self.can_pad: bool = False
        """Whether sequences can share the rows of one cache; if not, whether each can have a cache of its own, whether
        these can then be read as one batch, and whether prompts of different lengths can, too."""
        self._check()

    @property
    def context_length(self) -> int:
        return context_length(self.config.to_dict())

    @property
    def vocabulary(self) -> int:
        """The number of token ids. Reading a larger id would make a graphics card unusable until the process ends."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    @property
    def body(self) -> Any:
        return getattr(self.model, body_name(self.model))

    def lay_out(self) -> None:
        """Store the weights of linear layers as a processor multiplies them fastest, if it answers with 32-bit floats.

        Values stay, and so do embeddings, which are read row by row. To train on this network is slow afterwards.
        Raises `Overloaded` without memory for it.
        """
        if self.device.type == "cpu" and self.dtype is torch.float32 and can_pack():
            ids, embeddings = torch.zeros(1, 2, dtype=torch.long), self.model.get_input_embeddings().weight
            self._held = None
            try:
                with torch.inference_mode():
                    pack(self.model, embeddings, lambda: self.body(input_ids=ids, use_cache=False))
            except Exception as fault:
                if out_of_memory(fault):
                    raise Overloaded(_FULL) from fault
                raise

    def hidden(self, ids: Tensor, positions: Tensor, mask: Mask, cache: Any) -> Tensor:
        """Return the hidden states of new tokens (rows x tokens) at these positions, without derivatives.

        `positions` and `mask` are those that `cache` returned when the pass began.
        """
        if self.lean is not None:
            return self.lean.states(ids, positions, mask, cache)
        kept = {self._cache_name: cache}
        states = self.body(input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=True, **kept)
        return states.last_hidden_state

    def read(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Return the hidden states of whole prompts, right-padded, without a cache: no token sees what follows it."""
        longest = max(map(len, prompts))
        ids = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts], device=self.device)
        there = torch.tensor([[1] * len(prompt) + [0] * (longest - len(prompt)) for prompt in prompts])
        mask = None if len(prompts) == 1 else there.to(self.device)
        found: Tensor = self.body(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        return found

    def new_cache(self, rows: int = 1) -> JointCache:
        return JointCache(self.body, self.config, rows, self.has_cache)

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute logits in 32-bit floats, for weights of any type."""
        if self._own_head is not None:
            found: Tensor = self._own_head(hidden)
            return found
        return logits(self.model.get_output_embeddings(), hidden)

    # ---- which ways of running are correct

    def _check(self) -> None:
        """Check that body and head, used separately, give the logits of the whole model, and find the caches that do.

        Raises `BackendError` if they do not.
        """
        ids = torch.arange(min(CHECKED, self.context_length), device=self.device)[None] * 7919 % self.config.vocab_size
        try:
            with torch.inference_mode(), narrowed(self.config, ids.shape[1] // 3):
                whole = self.model(ids, use_cache=False).logits[0].float()
                self._require_numbers(whole)
                ways = WayChecks(self, ids, whole)
                self._choose_head(ways, self.body(input_ids=ids, use_cache=False).last_hidden_state[0], whole)
                if suits(self.config):
                    self.in_rows = self._choose_lean(ways) or ways.in_rows()
                self.has_cache = not self.in_rows and ways.in_separate_cache()
                self.can_batch = self.has_cache and ways.as_batch()
                self.can_pad = self.can_batch and ways.padded()
        except Exception as fault:
            kind = Overloaded if out_of_memory(fault) else BackendError
            raise kind(f"{type(self.model).__name__} cannot be run here: {first_line(fault)}") from fault

    def _require_numbers(self, logits: Tensor) -> None:
        """Raise `BackendError` for weights that are NaN or infinite: of those that a short text needs, and of the
        embeddings, of which it needs few.
        """
        embeddings = self.model.get_input_embeddings().weight
        if bool(logits.isfinite().all()) and are_numbers(embeddings):
            return
        for name, weights in self.model.named_parameters():
            odd = (~weights.isfinite()).nonzero()
            if len(odd):
                place = ", ".join(map(str, odd[0].tolist()))
                value = float(weights[tuple(odd[0])])
                raise BackendError(f"its weights are not all numbers: {name}[{place}] is {value}, one of {len(odd)}")
        raise BackendError("its logits are not all finite: the weights are too large for their number format")

    def _choose_lean(self, ways: WayChecks) -> bool:
        """Read tokens by operations of our own if that is right; return whether it is, with rows of one cache."""
        if self.device.type == "cpu" and self.dtype is torch.float32 and LeanPass.suits(self.config):
            self.lean = LeanPass(self.body, self.config)
            if ways.in_rows(ROUNDING):
                return True
            self.lean = None
        return False

    def _choose_head(self, ways: WayChecks, states: Tensor, whole: Tensor) -> None:
        """Use the head alone or, if the model does more after its body, all of the model after its body."""
        found, own = self.logits(states), ModelHead(self.model)
        more = tried(own, states)
        if more is not None and float((more - found).abs().max()) > 1e-5 * float(found.abs().max()):
            self._own_head, found = own, more
        if not ways.close(found, whole):
            raise BackendError("its logits are computed in an unknown way")


def failure_of(fault: Exception) -> BackendError | CallerError:
    if isinstance(fault, BackendError | CallerError):
        return fault
    full, name = out_of_memory(fault), type(fault).__name__
    kind, hint = (Overloaded, "; try again later, or with fewer tokens") if full else (BackendError, "")
    failure = kind(f"the model could not continue: {name}{hint}")
    failure.__cause__ = fault
    return failure


def first_line(fault: BaseException) -> str:
    """Return an error's first line, without the advice that follows; after a colon also the next line."""
    first, *further = str(fault).splitlines() or [type(fault).__name__]
    return f"{first} {further[0].strip()}" if further and first.endswith(":") else first


_FULL = "there is no memory to load this model; retry when others are done, or ask the host for more"


def _not_loaded(folder: Path, fault: Exception) -> BackendError:
    if out_of_memory(fault):
        return Overloaded(_FULL)
    return BackendError(f"the base model in {folder.name!r} cannot be loaded: {first_line(fault)}")


def _stored(folder: Path, dtype: torch.dtype | str) -> Any:
    """Load the model; "auto" is the type in which it is stored.

    Raises ValueError if weights are missing or misshapen: transformers would draw them at random.
    """
    model, loading = AutoModelForCausalLM.from_pretrained(
        folder,
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
        dtype=dtype,
    )
    odd = sorted({*loading["missing_keys"], *(name for name, *_ in loading["mismatched_keys"])})
    if odd:
        raise ValueError(f"its weights are not those that config.json describes (for one, {odd[0]})")
    return model


def _tuned(folder: Path, dtype: torch.dtype, weights: Mapping[str, Tensor]) -> Any:
    """Load the same architecture with other weights. Raises ValueError if they belong to another one."""
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


def _usual_dtype(device: str, form: WeightFormat | None) -> torch.dtype:
    """Return the type to compute with: processors gain little from 16-bit floats, graphics cards up to ten times."""
    if form is WeightFormat.FLOAT32:
        return torch.float32
    return torch.float32 if torch.device(device).type == "cpu" else torch.bfloat16


def _is_narrower(form: WeightFormat | None, dtype: torch.dtype) -> bool:
    """Return whether weights in this format have fewer bits than what is computed with."""
    return form is WeightFormat.INT8 or (form is WeightFormat.BFLOAT16 and dtype is torch.float32)
