"""The chat-completion format: messages, requests, responses and streams."""
