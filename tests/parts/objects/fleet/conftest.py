"""A bucket of moto's server; without moto nothing of this folder is collected, as `tests/parts/objects/s3` says."""

from importlib.util import find_spec

if find_spec("moto") is None:
    collect_ignore = ["test_objects.py"]
else:
    from disturbed_server import _running, address, bucket, server  # noqa: F401 - fixtures
