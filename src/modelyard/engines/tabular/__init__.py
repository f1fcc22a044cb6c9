"""A tiny language model in plain Python that really learns, for tests and for learning how things work.

It needs no numpy, and trains in about half of the time where that is installed.
"""

from modelyard.lazy import defer_modules

defer_modules(__name__, "backend", "trainer")
