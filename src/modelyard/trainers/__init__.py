"""What trains: each trainer turns a parent checkpoint and data into a new checkpoint, one optimizer step at a time."""

from modelyard.deferred import defer_modules

defer_modules(__name__, "tabular")
