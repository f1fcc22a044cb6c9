"""An S3-compatible server on loopback, moto's, that can be made to fail; and artifacts in a bucket of it.

Without moto one test of this folder says so, and nothing else of it is collected.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent

if find_spec("moto") is None:
    collect_ignore = ["test_s3.py", "test_s3_faults.py", "disturbed_server.py"]
else:
    sys.path.insert(0, str(HERE))

    from disturbed_server import _running, bucket, server  # noqa: F401 - fixtures
