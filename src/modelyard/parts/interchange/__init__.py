"""Runs that were made elsewhere, read and kept as runs, and runs written for other tools."""
