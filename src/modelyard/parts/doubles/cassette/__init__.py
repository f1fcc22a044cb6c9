"""Recorded answers of real servers, replayed."""
