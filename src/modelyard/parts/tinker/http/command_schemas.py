"""The commands of Tinker's client in JSON, and their answers."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import attrs

from modelyard.formats.constraints import Length, Only, Unsupported, Within, hint
from modelyard.parts.tinker.saved_weights import LONGEST

NAMED = Length(1, 128)
PATH = Length(1, 1024)
NUMBER = Within(0, 2**31 - 1)
TTL = Within(1, LONGEST)
METADATA = Length(0, 64)
_FIRST = Within(1, 2**31 - 1)
_FILE = Length(0, 256)
_REQUEST = Length(1, 256)

MAX_RANK = 4096
"""The largest rank of an adapter."""


@attrs.define(kw_only=True)
class AdapterBody:
    """The low-rank adapter of a run."""

    rank: int = attrs.field(validator=Within(1, MAX_RANK))
    seed: int | None = attrs.field(default=None, validator=Within(0, 2**63 - 1))
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


@attrs.define(kw_only=True)
class OptimizerChoice:
    """The optimizer of a run."""

    type: str = attrs.field(default="adamw", validator=Only(("adamw",), "is not supported: the optimizer is adamw"))


@attrs.define(kw_only=True)
class NewRun:
    """A model to be trained from a base model."""

    session_id: str = attrs.field(validator=NAMED)
    model_seq_id: int = attrs.field(validator=NUMBER)
    base_model: str = attrs.field(validator=PATH)
    lora_config: AdapterBody
    user_metadata: Mapping[str, Any] | None = attrs.field(default=None, validator=METADATA)
    optimizer_config: OptimizerChoice | None = None
    type: Literal["create_model"] = "create_model"


@attrs.define(kw_only=True)
class LoadedWeights:
    """Weights to load into a run (`model_id`, `seq_id`), or to make a run of (`session_id`, `model_seq_id`)."""

    path: str = attrs.field(validator=PATH)
    optimizer: bool
    model_id: str | None = attrs.field(default=None, validator=NAMED)
    seq_id: int | None = attrs.field(default=None, validator=_FIRST)
    session_id: str | None = attrs.field(default=None, validator=NAMED)
    model_seq_id: int | None = attrs.field(default=None, validator=NUMBER)
    base_model: str | None = attrs.field(default=None, validator=PATH)
    user_metadata: Mapping[str, Any] | None = attrs.field(default=None, validator=METADATA)
    optimizer_config: OptimizerChoice | None = None
    weights_access_token: str | None = attrs.field(
        default=None, validator=Unsupported("is not supported: weights are loaded with a key that may see them")
    )
    type: Literal["load_weights"] = "load_weights"


@attrs.define(kw_only=True)
class OptimStep:
    """An optimizer step with the gradients so far; `adam_params` are checked in its turn."""

    model_id: str = attrs.field(validator=NAMED)
    seq_id: int = attrs.field(validator=_FIRST)
    adam_params: Mapping[str, Any] | None = None
    optimizer_params: Mapping[str, Any] | None = None
    type: Literal["optim_step"] = "optim_step"


@attrs.define(kw_only=True)
class StateToSave:
    """Weights to be saved under a name, with the optimizer's state."""

    model_id: str = attrs.field(validator=NAMED)
    seq_id: int = attrs.field(validator=_FIRST)
    path: str | None = attrs.field(default=None, validator=_FILE)
    ttl_seconds: int | None = attrs.field(default=None, validator=TTL)
    overwrite: bool = False
    user_metadata: Mapping[str, str] | None = attrs.field(default=None, validator=METADATA)
    type: Literal["save_weights"] = "save_weights"


@attrs.define(kw_only=True)
class SamplerToSave:
    """Weights to be saved to sample from: under a name, or without one for a sampling session, which is made."""

    model_id: str = attrs.field(validator=NAMED)
    seq_id: int = attrs.field(validator=_FIRST)
    path: str | None = attrs.field(default=None, validator=_FILE)
    sampling_session_seq_id: int | None = attrs.field(default=None, validator=NUMBER)
    kind: Literal["snapshot", "inflight"] = "snapshot"
    ttl_seconds: int | None = attrs.field(default=None, validator=TTL)
    user_metadata: Mapping[str, str] | None = attrs.field(default=None, validator=METADATA)
    type: Literal["save_weights_for_sampler"] = "save_weights_for_sampler"


@attrs.define(kw_only=True)
class ShownRunInfo:
    """The run that is asked about."""

    model_id: str = attrs.field(validator=NAMED)
    type: Literal["get_info"] = "get_info"


@attrs.define(kw_only=True)
class UnloadedRun:
    """The run that is to end."""

    model_id: str = attrs.field(validator=NAMED)
    type: Literal["unload_model"] = "unload_model"


@attrs.define(kw_only=True)
class RefusedCommand:
    """A command that is not supported."""

    IGNORED: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("path", "ttl_seconds", "age_encryption_recipients"), "the command is refused, whatever it asks for"
    )

    model_id: str = attrs.field(validator=NAMED)
    seq_id: int = attrs.field(validator=_FIRST)
    type: Literal["save_weights_external"] = "save_weights_external"


@attrs.frozen
class Promise:
    """The id under which the answer is retrieved."""

    request_id: str
    model_id: str | None = None
    sample_sequence_ids: tuple[str, ...] | None = None


@attrs.define(kw_only=True)
class RetrievedAnswer:
    """The id of an answer."""

    request_id: str = attrs.field(validator=_REQUEST)
    allow_metadata_only: bool = attrs.field(default=False, metadata=hint("answers are sent whole, which it allows too"))


@attrs.define(kw_only=True)
class CancelledAnswer:
    """The id of an answer that nobody waits for."""

    request_id: str = attrs.field(validator=_REQUEST)


@attrs.frozen
class FailedRequest:
    """Why a command or a request to sample has failed."""

    error: str
    category: Literal["user", "server", "unknown"]


@attrs.frozen
class TryAgain:
    """There is no answer yet."""

    request_id: str
    queue_state: str = "active"
    type: Literal["try_again"] = "try_again"


@attrs.frozen
class ModelData:
    """The base model of a run."""

    arch: str
    model_name: str
    tokenizer_id: str | None


@attrs.frozen
class RunInfo:
    """The model that a run trains."""

    model_id: str
    model_data: ModelData
    model_name: str
    lora_rank: int
    is_lora: bool = True
    type: Literal["get_info"] = "get_info"
