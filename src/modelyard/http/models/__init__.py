"""The HTTP of `platform.models`."""
