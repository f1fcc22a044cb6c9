"""What was asked of a platform in a test, and what became of it."""
