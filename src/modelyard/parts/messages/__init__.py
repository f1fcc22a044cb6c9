"""HTTP of `platform.chat` in the messages format."""
