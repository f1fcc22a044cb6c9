"""The layers of a network that an adapter changes, for a caller that names kinds of layers."""

from collections.abc import Mapping

from torch import nn

from modelyard.domain.training_run import AdapterConfig
from modelyard.errors import UnsupportedParameter
from modelyard.parts.torch.lora import TARGETS, LoraShape, head_layer

ALPHA = 32
"""The numerator of the scale, whatever the rank, so that the best learning rate hardly depends on the rank."""

_KINDS: Mapping[str, frozenset[str]] = {
    "train_attn": frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj"}),
    "train_mlp": frozenset({"gate_proj", "up_proj", "down_proj", "gate_up_proj"}),
}
"""By kind, the names of projections in nearly all architectures."""


def shape_of(config: AdapterConfig, model: nn.Module) -> LoraShape:
    """Return the rank and the layers of such an adapter. Raises `UnsupportedParameter` for a kind that the network
    lacks.

    If the projections of a network have other names, all of them are changed, or none.
    """
    names = {name for kind in _KINDS if getattr(config, kind) for name in _projections(config, kind, model)}
    if config.train_unembed:
        head = head_layer(model)
        if not head:
            raise UnsupportedParameter.at("train_unembed", msg="is not possible: the output layer is not a linear one")
        names.add(head[0][0].rpartition(".")[2])
    return LoraShape(config.rank, ALPHA, tuple(sorted(names)))


def _projections(config: AdapterConfig, kind: str, model: nn.Module) -> frozenset[str]:
    usual = frozenset(LoraShape().resolve(model).targets)
    if usual & set(TARGETS):
        found = _KINDS[kind] & usual
    elif config.train_attn and config.train_mlp:
        found = usual
    else:
        known = f"its projections are {', '.join(sorted(usual)) or 'none'}"
        raise UnsupportedParameter.at(kind, msg=f"cannot be chosen by itself for this base model: {known}")
    if not found:
        raise UnsupportedParameter.at(kind, msg="is not possible: this base model has no such layers")
    return found
