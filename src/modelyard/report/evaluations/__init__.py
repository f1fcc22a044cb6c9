"""Evaluation runs and comparisons as text, HTML and files."""
