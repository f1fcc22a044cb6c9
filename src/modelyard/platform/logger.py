"""The library's logger: a module of its own, because logging is slow to load and most processes never log."""

import logging

log = logging.getLogger("modelyard")
log.addHandler(logging.NullHandler())
