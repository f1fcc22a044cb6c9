"""A backend whose answers are written as rules."""
