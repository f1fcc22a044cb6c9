"""That what runs against an S3-compatible server is not run here is said once."""

from importlib.util import find_spec

import pytest


def test_a_server_of_s3_is_installed() -> None:
    if find_spec("moto") is None:
        pytest.skip("the lane `objects` of tests/clients/lanes.py runs the tests against an S3-compatible server")
