"""The interface of the part `traces`."""

from modelyard.http.error_responses import DETAIL
from modelyard.http.interface import Interface
from modelyard.parts.traces.http.not_offered import why_missing

TRACES = Interface(
    "traces",
    DETAIL,
    missing=why_missing,
    description="Calls that programs trace, with objects, tables, files and feedback.",
)
