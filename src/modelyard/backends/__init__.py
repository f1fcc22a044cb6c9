"""What answers: the backends that ship with modelyard, for `open_platform(backend=...)`."""
