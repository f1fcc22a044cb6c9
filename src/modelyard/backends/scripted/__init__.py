"""A backend whose answers are written down in rules."""
