"""Training base models from local folders, on torch: SFT and RL."""

from modelyard.deferred import defer_modules

defer_modules(__name__, "learner", "trainer")
