"""The HTTP of `platform.chat`."""
