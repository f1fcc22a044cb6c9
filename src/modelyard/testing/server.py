"""A platform on a port of loopback, for clients that need a socket."""

from collections.abc import Iterator
from contextlib import contextmanager

from modelyard.asgi import asgi_app
from modelyard.service.platform import Platform
from modelyard.testing.asgi_server import asgi_server


@contextmanager
def served(platform: Platform) -> Iterator[str]:
    """Serve `platform` from a thread until the block ends. Gives its root, such as "http://127.0.0.1:43210".

    The port is one that was free. What is logged goes to the loggers of `uvicorn`, which are left as they are. Raises
    `MissingExtra`.

        with served(platform) as url:
            OpenAI(base_url=f"{url}/inference/v1", api_key=platform.keys.create().secret)
    """
    with asgi_server(asgi_app(platform), ws="none") as server:
        yield server.url
