"""Real clients connected to a platform, in process or over loopback."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "httpx", "httpx2")
