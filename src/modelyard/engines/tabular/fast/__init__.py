"""Learn in columns of numpy: half of a training step's CPU; all works without it, and without numpy."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "column_learning")
