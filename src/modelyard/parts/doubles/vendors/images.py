"""Which images the vendors take, by media type and content."""

import binascii

TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
"""Their media types."""


def is_base64(text: str) -> bool:
    """Return whether a text is bytes in base64, padded, with letters of no other alphabet; there may be spaces."""
    try:
        binascii.a2b_base64("".join(text.split()).encode("ascii", "replace"), strict_mode=True)
    except binascii.Error:
        return False
    return True
