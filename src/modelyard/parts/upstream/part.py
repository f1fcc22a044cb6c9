"""Any server of the chat-completion format as a backend, and adapters on it."""

from modelyard.part import Part

PART = Part("upstream")
