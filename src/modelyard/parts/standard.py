"""The list of the standard parts."""

from collections.abc import Sequence
from importlib import import_module

from modelyard.lazy import deferred
from modelyard.part import Part

_HOOKS = ("engine", "on_event", "upkeep", "captures", "submits", "names", "prices", "evaluates")


def _standard(name: str, *has: str) -> Part:
    """Return the part of a folder, which is loaded when it is first asked for more than its name.

    Every platform asks for these hooks, so a part says here which of them it `has`.
    """
    known = dict.fromkeys({*_HOOKS}.difference(has))
    part: Part = deferred(lambda: import_module(f"modelyard.parts.{name}.part").PART, name=name, **known)
    return part


STANDARD: Sequence[Part] = (
    _standard("responses"),
    _standard("completions"),
    _standard("stored_completions"),
    _standard("embeddings"),
    _standard("messages"),
    _standard("exchanges"),
    _standard("readers"),
    _standard("batches"),
    _standard("fine_tuning"),
    _standard("traces"),
    _standard("datasets"),
    _standard("sweeps", "on_event"),
    _standard("comparisons"),
    _standard("interchange"),
    _standard("traffic"),
    _standard("tinker"),
    _standard("annotations"),
    _standard("episodes", "captures", "submits"),
    _standard("loops"),
    _standard("distillation"),
    _standard("variants", "names"),
    _standard("review"),
    _standard("improve"),
    _standard("rollouts", "captures", "on_event", "upkeep"),
    _standard("what_if"),
    _standard("steering", "evaluates"),
    _standard("uploads"),
    _standard("shares"),
    _standard("webhooks", "on_event", "upkeep"),
    _standard("reports"),
    _standard("dashboard"),
    _standard("server"),
    _standard("quickstart"),
    _standard("metrics", "upkeep"),
    _standard("torch", "engine"),
    _standard("upstream"),
    _standard("scripted"),
    _standard("operating"),
    _standard("retention"),
    _standard("backups"),
    _standard("postgres", "upkeep"),
    _standard("objects"),
    _standard("clusters"),
    _standard("docs"),
    _standard("mcp"),
    _standard("routers", "prices"),
    _standard("contracts"),
    _standard("doubles"),
)
"""The parts that a platform has unless it is opened with others."""
