"""HTTP of `platform.usage`."""
