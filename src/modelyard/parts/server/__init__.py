"""The server of `modelyard serve`: uvicorn, for an open port."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "forwarded", "uvicorn_server")
