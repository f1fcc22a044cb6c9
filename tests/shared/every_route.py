"""Every route and every format of errors, of the core and of the standard parts."""

from functools import cache

from modelyard.http.endpoint import mounted_routes
from modelyard.http.interface import ErrorFormat, Interface
from modelyard.http.route import Route
from modelyard.part import standard_parts


@cache
def routes() -> list[Route]:
    return mounted_routes(list(Interface), standard_parts())


def error_formats() -> list[ErrorFormat]:
    return list(dict.fromkeys(route.error_format for route in routes()))
