"""Data sets that were uploaded: listed, read and split."""
