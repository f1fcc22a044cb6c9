"""HTTP of `platform.keys`."""
