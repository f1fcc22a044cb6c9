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
    from modelyard.parts.standard import STANDARD
    from modelyard.platform.jobs.claims import ClaimedJob
    from modelyard.platform.jobs.job_type import JobType
    from modelyard.platform.jobs.own_lane import end_job, submit_job
    from modelyard.platform.runtime import Runtime
    from modelyard.report.html import Html, tag


def _standard(name: str, has_engine: bool = False) -> Part:
    """Return the part of a folder, which is loaded when it is first asked for more than its name."""
    known: dict[str, object] = {} if has_engine else {"engine": None}
    part: Part = deferred(lambda: import_module(f"{__name__}.{name}.part").PART, name=name, **known)
    return part


STANDARD: Sequence[Part] = (
    _standard("responses"),
    _standard("completions"),
    _standard("embeddings"),
    _standard("messages"),
    _standard("batches"),
    _standard("fine_tuning"),
    _standard("traces"),
    _standard("traffic"),
    _standard("tinker"),
    _standard("annotations"),
    _standard("uploads"),
    _standard("dashboard"),
    _standard("metrics"),
    _standard("torch", has_engine=True),
    _standard("upstream"),
    _standard("scripted"),
    _standard("postgres"),
    _standard("objects"),
    _standard("clusters"),
    _standard("contracts"),
    _standard("doubles"),
)
"""The parts that a platform has unless it is opened with others."""
