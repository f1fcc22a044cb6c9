"""HTTP of `platform.annotations`."""
