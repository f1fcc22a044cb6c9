"""The HTTP of `platform.traces`."""
