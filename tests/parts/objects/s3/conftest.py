"""An S3-compatible server on loopback, moto's, that can be made to fail; and artifacts in a bucket of it.

Without moto one test of this folder says so, and nothing else of it is collected.
"""

from importlib.util import find_spec

if find_spec("moto") is None:
    collect_ignore = ["test_s3.py", "test_s3_faults.py", "test_uploads.py"]
else:
    from disturbed_server import _running, address, bucket, server  # noqa: F401 - fixtures
