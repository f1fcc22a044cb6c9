"""A backend with answers that are written as rules."""
