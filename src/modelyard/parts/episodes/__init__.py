"""What an agent does with a model, call by call, to be trained on: `platform.episodes`.

Nothing here is a trainer. A program calls the model as ever, with a key of its own; its calls are kept as turns, joined
to a tree, and become the trajectories of an RL job.
"""

from modelyard.lazy import defer_modules

defer_modules(
    __name__, "agents", "capture", "handle", "records", "rewards", "service", "training", "trajectories", "tree"
)
