"""What the standard parts add to a platform, for type checkers."""

from modelyard.parts.annotations.service import Annotations
from modelyard.parts.batches.files.service import Files
from modelyard.parts.batches.service import Batches
from modelyard.parts.comparisons.frame import ToPandas
from modelyard.parts.comparisons.service import CompareAll
from modelyard.parts.completions.service import Completions
from modelyard.parts.datasets.service import Datasets
from modelyard.parts.distillation.taught import Taught
from modelyard.parts.embeddings.service import Embeddings
from modelyard.parts.episodes.service import Episodes
from modelyard.parts.fine_tuning.service import FineTuning
from modelyard.parts.improve.improvement import Improve
from modelyard.parts.improve.service import StartPrompt
from modelyard.parts.interchange.service import InspectLogs
from modelyard.parts.loops.service import StartLoop
from modelyard.parts.metrics.service import Metrics
from modelyard.parts.operating.retry import Retry
from modelyard.parts.responses.service import Responses
from modelyard.parts.retention.service import Keep
from modelyard.parts.review.service import Reviews
from modelyard.parts.rollouts.service import RollOut, StagedRollouts
from modelyard.parts.routers.service import Routers
from modelyard.parts.shares.service import Shares
from modelyard.parts.steering.service import Steering
from modelyard.parts.sweeps.service import StartSweep, Sweeps
from modelyard.parts.tinker.service import TrainingRuns
from modelyard.parts.torch.exports.imported import ImportAdapter
from modelyard.parts.torch.exports.service import ExportModel, PushModel
from modelyard.parts.torch.service import AddBaseModel, ListBaseModels
from modelyard.parts.torch.training.options import DistillKeywords as DistillKeywords
from modelyard.parts.torch.training.options import DPOKeywords as DPOKeywords
from modelyard.parts.torch.training.options import RLKeywords as RLKeywords
from modelyard.parts.torch.training.options import SFTKeywords as SFTKeywords
from modelyard.parts.traces.service import Traces
from modelyard.parts.traffic.service import Traffic
from modelyard.parts.uploads.service import Uploads
from modelyard.parts.variants.service import Variants
from modelyard.parts.webhooks.service import Webhooks
from modelyard.parts.what_if.service import AskTraffic


class StandardResources:
    """The attributes that a platform has from its standard parts."""

    embeddings: Embeddings
    """Vectors of texts."""
    shares: Shares
    """The shares of entities in the workers."""
    routers: Routers
    """What model routers are told of the catalogue, and prices that depend on the request."""
    annotations: Annotations
    """Tags and notes on jobs, runs, models and checkpoints."""
    episodes: Episodes
    """What agents do with a model, call by call, to train it."""
    datasets: Datasets
    """Data sets that were uploaded, and splits of them."""
    traffic: Traffic
    """Training data from what was asked and answered."""
    variants: Variants
    """What one serves under a name: models with a prompt and parameters, in versions."""
    review: Reviews
    """Rows that people label, to check judges and correct their numbers."""
    improve: Improve
    """Several roads to better answers, at equal budget, compared on rows that none has seen."""
    rollouts: StagedRollouts
    """New checkpoints that come to the users of an alias in stages."""
    webhooks: Webhooks
    """Events that are posted to addresses of their owner."""
    metrics: Metrics
    """Figures for Prometheus. Only the host may use it."""

    keep: Keep
    """Rules by which old data go. Only the host may use it."""

    add_base_model: AddBaseModel
    """Offer a causal language model in a local folder, and train on it."""
    base_models: ListBaseModels
    """List the base models in local folders."""


class CompatResources:
    """What they add for clients of other services."""

    responses: Responses
    """Responses, which the platform keeps."""
    completions: Completions
    """Prompts that are continued without a chat template, and tokens."""
    training_runs: TrainingRuns
    """Models that clients train command by command."""
    traces: Traces
    """Calls that programs trace."""
    uploads: Uploads
    """Training data that clients upload in several calls."""
    files: Files
    """Files that clients keep for later."""
    batches: Batches
    """Files of requests that a job answers."""
    fine_tuning: FineTuning
    """Training jobs in the words of fine-tuning services."""


class ModelsMembers:
    """What they add to `platform.models`."""

    export: ExportModel
    """Write a checkpoint where others load it: as an adapter, merged, or as a GGUF file."""
    roll_out: RollOut
    """Bring a step to the users of an alias in stages."""
    push: PushModel
    """Send a checkpoint to a hub."""
    import_adapter: ImportAdapter
    """Add an adapter that peft saved to a model."""


class TrafficMembers:
    """What they add to `platform.traffic`."""

    what_if: AskTraffic
    """Ask what stored traffic would have been like with another model or other prices."""


class JobsMembers:
    """What they add to `platform.jobs`."""

    retry: Retry
    """Queue a training job again that has failed or was cancelled."""


class TrainingMembers:
    """What they add to `platform.training`."""

    loop: StartLoop
    """Train a model by RL in rounds, each of which samples, judges, trains and validates."""
    prompt: StartPrompt
    """Have the prompt of a variant optimised, as a job."""
    sweep: StartSweep
    """Train a model with every combination of options, as one object."""
    sweeps: Sweeps
    """The sweeps that were started."""
    taught: Taught
    """Have a teacher score what a model sampled, to distil the model on it."""


class EvaluationsMembers:
    """What they add to `platform.evaluations`."""

    compare_all: CompareAll
    """Compare several runs in one table."""
    to_pandas: ToPandas
    """Return runs as a data frame."""
    inspect: InspectLogs
    """Runs from logs of Inspect, and logs of runs."""
    steering: Steering
    """Runs that are steered while they run, with an audit."""
