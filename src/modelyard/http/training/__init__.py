"""The HTTP of `platform.training`."""
