"""The HTTP of `platform.evaluations`."""
