"""The messages of Tinker's client, as tinker 0.38 has them: of sessions, samplers, runs and saved weights.

Members that change nothing are in an `IGNORED`, with the reason; any other unknown one is refused.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, Literal

import attrs

from modelyard.domain.record import FOR_EVER
from modelyard.formats.constraints import Length, hint
from modelyard.parts.tinker.http.command_schemas import METADATA, NAMED, NUMBER, PATH, TTL
from modelyard.parts.tinker.records import RunWeights, WeightsKind

# ---- sessions ----------------------------------------------------------------------------------------------------


@attrs.define(kw_only=True)
class NewRunSession:
    """The session that a client begins. `project_id` is the name of a project."""

    tags: tuple[str, ...] = attrs.field(default=(), validator=Length(0, 64))
    user_metadata: Mapping[str, Any] | None = attrs.field(default=None, validator=METADATA)
    sdk_version: str = attrs.field(default="", validator=Length(0, 64))
    project_id: str | None = attrs.field(default=None, validator=NAMED)
    display_name: str | None = attrs.field(default=None, validator=Length(0, 256))
    type: Literal["create_session"] = "create_session"


@attrs.frozen
class MadeSession:
    """The session, and the messages that its client may show to its user."""

    session_id: str
    type: Literal["create_session"] = "create_session"
    info_message: str | None = None
    warning_message: str | None = None
    error_message: str | None = None


@attrs.define(kw_only=True)
class SessionNamed:
    """A session that is alive."""

    session_id: str = attrs.field(validator=NAMED)
    type: Literal["session_heartbeat"] = "session_heartbeat"


@attrs.frozen
class HeartbeatAnswer:
    """The answer to a heartbeat: the session continues."""

    type: Literal["session_heartbeat"] = "session_heartbeat"


@attrs.define(kw_only=True)
class EndReason:
    """Why a session has ended."""

    type: Literal["success", "errored", "interrupted"]


@attrs.define(kw_only=True)
class SessionEnd:
    """How a session has ended."""

    reason: EndReason
    detail: str | None = attrs.field(
        default=None, validator=Length(0, 4096), metadata=hint("of the end of a session, only the reason is kept")
    )


@attrs.frozen
class ShownSession:
    """The runs and the samplers of a session."""

    training_run_ids: tuple[str, ...]
    sampler_ids: tuple[str, ...]
    user_metadata: Mapping[str, Any] | None
    display_name: str | None


@attrs.frozen
class SessionIds:
    """The ids of sessions, the newest first."""

    sessions: tuple[str, ...]


@attrs.define(kw_only=True)
class ClientVersion:
    """The client that asks how it is to behave."""

    sdk_version: str = attrs.field(
        default="", validator=Length(0, 64), metadata=hint("clients of all versions are to behave alike")
    )


@attrs.define(kw_only=True)
class ReportedEvents:
    """The events that a client reports of itself."""

    IGNORED: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("platform", "sdk_version", "session_id", "process_uuid"), "events are not kept, so it does not matter of whom"
    )

    events: tuple[Any, ...] = attrs.field(metadata=hint("events are accepted, and not kept"))


@attrs.frozen
class ClientFlags:
    """How a client is to behave. For all other flags, it uses its own defaults."""

    pjwt_auth_enabled: bool = False
    parallel_fwdbwd_chunks: bool = True
    proto_compress_fwdbwd: bool = False
    fwdbwd_max_chunk_len: int = 1024
    fwdbwd_max_chunk_bytes_count: int = 5_000_000
    sample_use_retrieve_futures: bool = False
    sample_join_sampling_session: bool = True
    sample_max_concurrent_requests: int = 256
    custom_loss_server_side: bool = False
    use_pyqwest_transport: bool = True


@attrs.frozen
class ChangingFlags:
    """How a client is to behave from now on; it asks again."""

    refresh_interval_sec: int = 300
    sample_cancel_enabled: bool = True


@attrs.frozen
class TelemetryAnswer:
    """The answer to reported events: they are accepted, and not kept."""

    status: Literal["accepted"] = "accepted"


@attrs.frozen
class Healthy:
    """A sign that the server answers."""

    status: Literal["ok"] = "ok"


@attrs.frozen
class SupportedModel:
    """A model, how many tokens it takes, and its uses."""

    model_name: str
    max_context_length: int
    trainable: bool
    sampleable: bool


@attrs.frozen
class ServerCapabilities:
    """The models that requests can name."""

    supported_models: tuple[SupportedModel, ...]


# ---- samplers ----------------------------------------------------------------------------------------------------


@attrs.define(kw_only=True)
class NewSampler:
    """The source of samples: a base model, or the path of saved weights."""

    session_id: str = attrs.field(validator=NAMED)
    sampling_session_seq_id: int = attrs.field(validator=NUMBER)
    base_model: str | None = attrs.field(default=None, validator=PATH)
    model_path: str | None = attrs.field(default=None, validator=PATH)
    type: Literal["create_sampling_session"] = "create_sampling_session"


@attrs.frozen
class MadeSampler:
    """The sampling session that was made."""

    sampling_session_id: str
    type: Literal["create_sampling_session"] = "create_sampling_session"


@attrs.define(kw_only=True)
class SamplerNamed:
    """A sampling session that one more client uses."""

    sampling_session_id: str = attrs.field(validator=NAMED)
    type: Literal["join_sampling_session"] = "join_sampling_session"


@attrs.frozen
class JoinedSampler:
    """The number of a client of a sampling session."""

    client_counter: int
    type: Literal["join_sampling_session"] = "join_sampling_session"


@attrs.frozen
class ShownSampler:
    """The model that a sampling session samples from."""

    sampler_id: str
    base_model: str
    model_path: str | None


# ---- runs and saved weights --------------------------------------------------------------------------------------


@attrs.frozen
class ShownWeights:
    """Saved weights, and the path under which requests name them."""

    checkpoint_id: str
    checkpoint_type: Literal["training", "sampler"]
    time: datetime
    tinker_path: str
    size_bytes: int
    public: bool
    user_metadata: Mapping[str, str] | None
    expires_at: datetime | None

    @classmethod
    def of(cls, weights: RunWeights) -> "ShownWeights":
        named = weights.id.partition("/")[2]
        expires = None if weights.expires_at == FOR_EVER else weights.expires_at
        of_kind: Literal["training", "sampler"] = "training" if weights.kind is WeightsKind.STATE else "sampler"
        shown = (weights.created_at, weights.path, weights.size, False)
        return cls(named, of_kind, *shown, dict(weights.metadata) or None, expires)


@attrs.frozen
class Offsets:
    """Which part of a listing this is, and how many items there are in all."""

    offset: int
    limit: int
    total_count: int


@attrs.frozen
class WeightsList:
    """Saved weights: of one run, the oldest first; of all runs, the newest first, with the `cursor` of this part."""

    checkpoints: tuple[ShownWeights, ...]
    cursor: Offsets | None = None


@attrs.frozen
class ShownRun:
    """A training run, as a client reads it."""

    training_run_id: str
    base_model: str
    model_owner: str
    is_lora: bool
    corrupted: bool
    lora_rank: int
    last_request_time: datetime
    last_checkpoint: ShownWeights | None
    last_sampler_checkpoint: ShownWeights | None
    user_metadata: Mapping[str, Any] | None


@attrs.frozen
class RunList:
    """Training runs, the newest first."""

    training_runs: tuple[ShownRun, ...]
    cursor: Offsets


@attrs.define(kw_only=True)
class Expiry:
    """In how many seconds weights expire; null for never."""

    ttl_seconds: int | None = attrs.field(default=None, validator=TTL)


@attrs.define(kw_only=True)
class WeightsNamed:
    """The path of saved weights."""

    tinker_path: str = attrs.field(validator=PATH)


@attrs.frozen
class WeightsInfo:
    """The facts that a run needs to load weights."""

    base_model: str
    is_lora: bool
    lora_rank: int
    train_unembed: bool
    train_mlp: bool
    train_attn: bool
