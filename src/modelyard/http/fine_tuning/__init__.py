"""The HTTP of `platform.fine_tuning`."""
