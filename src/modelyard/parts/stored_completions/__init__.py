"""HTTP of the completions that were stored on request."""
