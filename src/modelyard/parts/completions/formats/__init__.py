"""The formats in which a prompt is continued, read and written here only: text completions, and token ids."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "request", "response", "stream", "generate", "tokens")
