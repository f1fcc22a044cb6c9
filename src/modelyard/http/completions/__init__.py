"""The HTTP of `platform.completions`."""
