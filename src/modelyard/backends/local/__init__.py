"""Serving base models from local folders, with the adapters of their checkpoints, on torch."""

from modelyard.deferred import defer_modules

defer_modules(__name__, "backend", "engine", "loaded", "networks", "sampler", "sequence", "speech")
