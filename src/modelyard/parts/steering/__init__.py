"""Evaluations that run are steered: paused, resumed, given rows again or more of them, and other limits."""
