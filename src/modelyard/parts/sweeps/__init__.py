"""Sweeps: a model trained with every combination of options, as one object."""
