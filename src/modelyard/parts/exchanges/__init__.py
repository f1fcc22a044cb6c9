"""Trajectories that were recorded as the requests of a rollout and their answers."""
