"""Frozen values and pure functions: no I/O, no clock, no ids, no wire shapes, no SQL."""
