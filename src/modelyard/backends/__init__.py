"""What answers: the backends that ship with modelyard, for `open_platform(backend=...)`."""

from modelyard.deferred import defer_modules

defer_modules(__name__, "structure", "tabular")
