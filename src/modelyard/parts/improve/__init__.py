"""What answers better: prompts that are optimised, and roads to better answers that are compared.

records     what is kept of an optimisation: calls that were paid for, rows that were judged, proposals
config      the options of a prompt job
kept        models that are asked once for each request of a job
thread      a function in a thread of its own, served by the turns of a job
candidates  a prompt on rows: its answers, their scores, and what is said of them
job         the work of a prompt job, which the package gepa leads
service     `platform.training.prompt`
roads       the roads of an improvement, as values
improvement `platform.improve`
journey     the work of an improvement
result      what the roads came to, side by side
found       jobs of both kinds that a caller may see
routes      both over HTTP
"""

from modelyard.lazy import defer_modules

defer_modules(__name__, "candidates", "config", "job", "kept", "records", "service", "thread")
