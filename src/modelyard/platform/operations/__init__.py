"""What a host does with the platform as a whole: health, erasure, retention of events, orphans."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "erasure", "files", "health", "orphans")
