"""A new checkpoint comes to the users of an alias in stages, and goes back if it is worse: `platform.rollouts`.

sequence    the confidence sequence of a difference of two arms, as functions of numbers
decisions   what a rollout does next, as a function of what is known
records     rollouts, answers with their arm and propensity, scores, and what was decided
arms        who answers a request to the alias, and what is kept of the answer
mirror      the same requests asked of the candidate in the background, on a purse
upkeep      a look at each rollout that runs: it counts, decides, and moves the alias
service     `platform.rollouts`
"""

from modelyard.lazy import defer_modules

defer_modules(
    __name__,
    "arms",
    "decisions",
    "mirror",
    "records",
    "sequence",
    "service",
    "upkeep",
)
