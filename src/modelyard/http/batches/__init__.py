"""The HTTP of `platform.batches`."""
