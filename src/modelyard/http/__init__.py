"""HTTP as a function from a request value to a response value: no sockets, no framework."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "core_routes", "openapi")
