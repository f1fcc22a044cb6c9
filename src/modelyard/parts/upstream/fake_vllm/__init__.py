"""A server that behaves like vLLM, in process."""
