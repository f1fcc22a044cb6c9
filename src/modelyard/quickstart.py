"""Train and evaluate a small model from end to end (`modelyard.parts.quickstart.story`)."""

from modelyard.parts.quickstart.story import run

__all__ = ["run"]
