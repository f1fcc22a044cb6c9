"""The HTTP interface of `platform.compat.traces`."""
