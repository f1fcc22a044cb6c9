"""Public names of parts, as the public modules of the core have them: `modelyard.backends.UpstreamBackend`."""
