"""HTTP of `platform.training_runs`, as Tinker's client asks for it."""
