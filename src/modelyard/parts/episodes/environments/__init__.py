"""Environments of other packages, unmodified, as the tasks and the agent of a loop."""
