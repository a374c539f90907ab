"""The bytes of an image as a sequence."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.errors import InputError
from tokenloom.indexed.layout import MAX_IMAGE_BYTES, check_image_size, image_to_item, item_to_image


def test_the_first_element_counts_the_padding():
    assert image_to_item(b"\x01\x02\x03\x04").tolist() == [0, 0x04030201]
    assert image_to_item(b"\x01\x02\x03\x04\xff").tolist() == [3, 0x04030201, 0xFF]
    assert image_to_item(b"\xff\xff\xff\xff").tolist() == [0, -1]


@given(st.binary(min_size=1, max_size=40))
def test_an_image_comes_back(data):
    item = image_to_item(data)
    assert item.dtype == np.int32
    assert len(item) == 1 + -(-len(data) // 4)
    assert item_to_image(item) == data


def test_an_image_that_int32_cannot_count_is_refused():
    check_image_size(MAX_IMAGE_BYTES)
    assert 1 + MAX_IMAGE_BYTES // 4 == 2**31 - 1
    for size in (MAX_IMAGE_BYTES + 1, 0):
        with pytest.raises(InputError) as caught:
            check_image_size(size)
        assert str(caught.value) == f"expected an image of 1 to 8589934584 bytes, found {size}"
