"""The HTTP of `platform.health`."""
