"""Where checkpoint files and training data lie."""
