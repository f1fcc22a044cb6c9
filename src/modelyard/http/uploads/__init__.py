"""The HTTP of `platform.uploads`."""
