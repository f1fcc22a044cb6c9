"""The HTTP interface of `platform.traces`."""
