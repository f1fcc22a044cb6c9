"""Requests of clients that the application makes itself, answered by a platform in process."""
