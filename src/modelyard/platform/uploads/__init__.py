"""`platform.uploads`: training data that clients upload."""
