"""The HTTP of `platform.responses`."""
