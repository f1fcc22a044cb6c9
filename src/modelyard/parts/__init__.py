"""What may be deleted: each folder is one optional capability, and the core works without any of them.

A part imports the core; the core imports no part. What a part adds, it adds through one value, `PART` in its `part.py`.
The names here are those with which a part is written; each is loaded when it is used.
"""

from typing import TYPE_CHECKING

from modelyard.lazy import lazy_exports

if TYPE_CHECKING:
    from modelyard.cli import command_line
    from modelyard.cli.terminal import opened, store_option
    from modelyard.formats.converter import structure
    from modelyard.http.error_responses import DETAIL
    from modelyard.http.interface import Auth, ErrorFormat, Interface
    from modelyard.http.interfaces import OPERATIONS
    from modelyard.http.message import json_response
    from modelyard.http.route import Body, Route, RouteCall
    from modelyard.part import Command, DashboardPage, Part, StoreAddress
    from modelyard.parts.dashboard.view import HtmlPage, Redirect, View
    from modelyard.parts.own_lane import end_job, submit_job
    from modelyard.parts.reports.html import Html, tag
    from modelyard.parts.standard import STANDARD
    from modelyard.platform.jobs.claims import ClaimedJob
    from modelyard.platform.jobs.job_type import JobType
    from modelyard.platform.runtime import Runtime

    __all__ = [
        "DETAIL",
        "OPERATIONS",
        "STANDARD",
        "Auth",
        "Body",
        "ClaimedJob",
        "Command",
        "DashboardPage",
        "ErrorFormat",
        "Html",
        "HtmlPage",
        "Interface",
        "JobType",
        "Part",
        "Redirect",
        "Route",
        "RouteCall",
        "Runtime",
        "StoreAddress",
        "View",
        "command_line",
        "end_job",
        "json_response",
        "opened",
        "store_option",
        "structure",
        "submit_job",
        "tag",
    ]
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "cli": ("command_line",),
            "cli.terminal": (
                "opened",
                "store_option",
            ),
            "formats.converter": ("structure",),
            "http.error_responses": ("DETAIL",),
            "http.interface": (
                "Auth",
                "ErrorFormat",
                "Interface",
            ),
            "http.interfaces": ("OPERATIONS",),
            "http.message": ("json_response",),
            "http.route": (
                "Body",
                "Route",
                "RouteCall",
            ),
            "part": (
                "Command",
                "DashboardPage",
                "Part",
                "StoreAddress",
            ),
            "parts.dashboard.view": (
                "HtmlPage",
                "Redirect",
                "View",
            ),
            "parts.standard": ("STANDARD",),
            "platform.jobs.claims": ("ClaimedJob",),
            "platform.jobs.job_type": ("JobType",),
            "parts.own_lane": (
                "end_job",
                "submit_job",
            ),
            "platform.runtime": ("Runtime",),
            "parts.reports.html": (
                "Html",
                "tag",
            ),
        },
    )
