"""Use cases: the only place that sequences steps. Each resource of the platform is one module, named by its noun."""
