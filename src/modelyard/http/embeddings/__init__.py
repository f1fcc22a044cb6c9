"""HTTP of `platform.embeddings`."""
