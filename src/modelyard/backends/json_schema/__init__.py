"""JSON schemas: which a backend understands, whether a value is valid, and the smallest valid value."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "instances")
