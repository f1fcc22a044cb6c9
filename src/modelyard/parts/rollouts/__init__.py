"""Checkpoints and variants that come to the users of an alias in stages, and go back if they are worse.

sequence    the confidence sequence of a difference of two arms, as functions of numbers
decisions   what a rollout does next, as a function of what is known
records     rollouts, answers with their arm and propensity, scores, and what was decided
given       what a new rollout is told, checked
subjects    the steps of a model, or the versions of a variant
arms        who answers a request to the alias, and what is kept of the answer
mirror      the same requests asked of the candidate in the background, on a purse
scores      what is said of an answer, counted
judging     scores of mirrored requests by a scorer, on the purse
upkeep      a look at each rollout that runs: it counts, decides, and moves the alias
service     `platform.rollouts`
"""

from modelyard.lazy import defer_modules

defer_modules(
    __name__,
    "arms",
    "decisions",
    "given",
    "judging",
    "mirror",
    "records",
    "sequence",
    "scores",
    "service",
    "subjects",
    "upkeep",
)
