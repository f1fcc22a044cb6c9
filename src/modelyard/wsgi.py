"""The platform as a WSGI application (`modelyard.parts.server.wsgi`)."""

from modelyard.parts.server.wsgi import STANDARD, Interface, wsgi_app

__all__ = ["STANDARD", "Interface", "wsgi_app"]
