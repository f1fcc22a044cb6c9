"""A small model trained and evaluated from end to end, to begin with."""
