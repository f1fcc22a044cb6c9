"""The promises of the protocols as test suites for implementations."""
