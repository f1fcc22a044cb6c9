"""The HTTP of `platform.catalogue`."""
