"""Training of causal language models on torch."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "learner", "options", "trainer")
