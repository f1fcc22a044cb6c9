"""nginx for tests, with a location block of ours, in a temporary folder and on a port of its own."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from free_ports import free_ports
from polling import until

CONFIGURATION = """
daemon off;
pid {folder}/pid;
error_log {folder}/errors;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/bodies;
    proxy_temp_path {folder}/answers;
    fastcgi_temp_path {folder}/unused;
    uwsgi_temp_path {folder}/unused;
    scgi_temp_path {folder}/unused;
    server {{
        listen 127.0.0.1:{port};
        {location}
    }}
}}
"""
FOUND = shutil.which("nginx", path="/usr/local/sbin:/usr/sbin:/usr/local/bin:/usr/bin")
"""Where it is: it may not be on a user's path."""


@contextmanager
def nginx_server(folder: Path, location: str, upstream: str) -> Iterator[str]:
    """Yield the address of an nginx with this block, which passes on to `upstream` instead of the address in it."""
    if FOUND is None:
        problem = "no nginx: apt-get install nginx-light"
        pytest.fail(problem) if os.environ.get("CI") == "true" else pytest.skip(problem)
    location, replaced = re.subn(r"(proxy_pass )http://[^/]+/;", rf"\g<1>{upstream}/;", location)
    assert replaced == 1
    (port,) = free_ports(1)
    configuration = folder / "nginx.conf"
    configuration.write_text(CONFIGURATION.format(folder=folder, port=port, location=location), encoding="utf-8")
    command = [FOUND, "-p", str(folder), "-e", str(folder / "errors"), "-c", str(configuration)]
    with subprocess.Popen(command) as nginx:
        try:
            until(lambda: (folder / "pid").exists() or nginx.poll() is not None)
            assert nginx.poll() is None, (folder / "errors").read_text(encoding="utf-8")
            yield f"http://localhost:{port}"
        finally:
            nginx.terminate()
