"""Backups of a store and its artifacts, wherever they are kept: written with digests, and restored to any place."""
