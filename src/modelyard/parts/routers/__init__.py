"""What model routers read of a provider: its models with typed modalities, and prices that depend on the request."""
