"""What this part brings to the tests of all parts."""

from base64 import b64encode
from hashlib import md5
from io import BytesIO

from modelyard import Platform

LINES = b'{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}\n'


def fill(platform: Platform) -> None:
    uploads = platform.compat.uploads
    begun = uploads.begin("support", project="desk")
    secret = uploads.expect_file(begun.id, b64encode(md5(LINES, usedforsecurity=False).digest()).decode())
    assert secret is not None
    uploads.receive(secret, BytesIO(LINES))
