"""Domain values made readable for people: tables, plots, pages and progress bars."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "records")
