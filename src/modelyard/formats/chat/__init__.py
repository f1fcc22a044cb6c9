"""The chat-completion format, read and written here only: messages, requests, responses and streams."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "kept_fast", "request", "values")
