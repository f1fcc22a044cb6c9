"""Learn in columns of numpy: without it, and without numpy, a training step takes twice the CPU."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "column_learning")
