"""Training causal language models on torch: SFT and RL."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "learner", "trainer")
