"""HTTP of `platform.compat.training_runs`, as Tinker's client asks for it."""
