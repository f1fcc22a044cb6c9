"""The platform as an object: the folder of an attribute of `Platform` has its name."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "job_types", "lineage", "paging")
