"""Forms as clients send them."""

from collections.abc import Mapping

BOUNDARY = "a-boundary"
HEADER = ("content-type", f"multipart/form-data; boundary={BOUNDARY}")


def form(fields: Mapping[str, str], file: bytes | None = None, filename: str = "train.jsonl") -> bytes:
    """The bytes of a form with these fields, and a file after them."""
    parts = [f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode() for name, value in fields.items()]
    if file is not None:
        head = f'Content-Disposition: form-data; name="file"; filename="{filename}"\r\nContent-Type: text/plain\r\n\r\n'
        parts.append(head.encode() + file)
    return b"".join(f"--{BOUNDARY}\r\n".encode() + part + b"\r\n" for part in parts) + f"--{BOUNDARY}--\r\n".encode()
