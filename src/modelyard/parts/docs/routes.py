"""The docs for language models, next to the OpenAPI document."""

from functools import partial

from modelyard.http.errors import UnknownRoute
from modelyard.http.interface import Auth
from modelyard.http.interfaces import BASE
from modelyard.http.message import Response
from modelyard.http.route import Route, RouteCall
from modelyard.parts.docs import pages

TEXT = "text/plain; charset=utf-8"


def _text(file: str) -> Response:
    try:
        return Response(200, [("content-type", TEXT)], pages.text_of(file).encode())
    except FileNotFoundError as missing:
        raise UnknownRoute(f"this installation has no docs: {pages.SITE}{file} has them") from missing


def show_docs_index(call: RouteCall) -> Response:
    """List the pages of the docs with a sentence each, for language models."""
    return _text("llms.txt")


def show_docs(call: RouteCall) -> Response:
    """Show every page of the docs as one text, for language models."""
    return _text("llms-full.txt")


_public = partial(Route, "GET", interface=BASE, auth=Auth.PUBLIC, media="text/plain")
ROUTES: tuple[Route, ...] = (
    _public("/llms.txt", handler=show_docs_index),
    _public("/llms-full.txt", handler=show_docs),
)
