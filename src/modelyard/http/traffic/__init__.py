"""The HTTP of `platform.traffic`."""
