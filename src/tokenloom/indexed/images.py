"""Images in a multimodal dataset: the bytes of the file as int32, after a first element that counts the padding."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import DatasetFormatError, InputError

TEXT_MODE = 0
IMAGE_MODE = 1

_ITEM_BYTES = 4
_MAX_ITEMS = np.iinfo(np.int32).max
MAX_IMAGE_BYTES = (_MAX_ITEMS - 1) * _ITEM_BYTES
"""A sequence counts its elements in int32, and the first one is not of the image."""


def check_image_size(num_bytes: int) -> None:
    """Checks that an image can be stored."""
    if not 0 < num_bytes <= MAX_IMAGE_BYTES:
        message = f"expected an image of 1 to {MAX_IMAGE_BYTES} bytes, found {num_bytes}"
        raise InputError(message)


def image_to_item(data: bytes) -> NDArray[np.int32]:
    """Returns the sequence that stores the bytes of an image file: int32[1 + ceil(bytes / 4)], little-endian.

    Example:
        >>> image_to_item(b"\\x01\\x00\\x00\\x00\\x02").tolist()
        [3, 1, 2]
    """
    check_image_size(len(data))
    padding = -len(data) % _ITEM_BYTES
    item = np.empty(1 + (len(data) + padding) // _ITEM_BYTES, dtype="<i4")
    item[0] = padding
    item[-1] = 0
    item.view(np.uint8)[_ITEM_BYTES : _ITEM_BYTES + len(data)] = np.frombuffer(data, dtype=np.uint8)
    return item


def item_to_image(item: NDArray[Any]) -> bytes:
    """Returns the bytes of an image file from the sequence that stores it: int32[1 + n]."""
    padding = int(item[0]) if len(item) else -1
    if item.dtype != np.int32 or len(item) < 2 or not 0 <= padding < _ITEM_BYTES:
        message = f"expected the int32 of an image after 0 to 3 for its padding, found {item.dtype}{item[:4].tolist()}"
        raise DatasetFormatError(message, hint="is this sequence an image?")
    return np.ascontiguousarray(item[1:]).tobytes()[: (len(item) - 1) * _ITEM_BYTES - padding]
