"""What implementations of the protocols promise, as test suites."""
