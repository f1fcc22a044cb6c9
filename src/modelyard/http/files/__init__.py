"""The HTTP of `platform.files`."""
