"""The format of responses, read and written here only: items, requests, responses and events."""
