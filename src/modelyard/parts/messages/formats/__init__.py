"""The messages format: requests as blocks of content, and answers as blocks and events."""
