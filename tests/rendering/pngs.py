"""Reads what a PNG file says of itself."""

from __future__ import annotations

import struct


def size_of(png: bytes) -> tuple[int, int]:
    """Returns width and height, in pixels."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    return width, height
