"""Traces of requests and completions for OpenTelemetry (`modelyard.parts.metrics.otel`)."""

from modelyard.parts.metrics.otel import OpenTelemetry, instrument

__all__ = ["OpenTelemetry", "instrument"]
