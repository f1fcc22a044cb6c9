"""A first look: train and evaluate a small model from end to end."""
