"""The kernel that gathers spans, compared with its readable reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference import windows

from tokenloom.kernels.samples import gather_spans

TOKEN_DTYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}


def stored(sequences, code):
    """Returns the bytes of the sequences and the offset of each."""
    arrays = [np.array(sequence, dtype=TOKEN_DTYPES[code]) for sequence in sequences]
    pointers = np.cumsum([0, *(array.nbytes for array in arrays)])[:-1].astype(np.int64)
    data = np.frombuffer(b"".join(array.tobytes() for array in arrays), dtype=np.uint8)
    return arrays, data, pointers


def gathered(data, pointers, code, spans):
    columns = np.array(spans, dtype=np.int64).reshape(-1, 3).T.copy()
    out = np.empty(abs(int(columns[2].sum())), dtype=TOKEN_DTYPES[code])
    gather_spans(data, pointers, dtype_code=code, sequences=columns[0], starts=columns[1], lengths=columns[2], out=out)
    return out


@given(data=st.data(), code=st.sampled_from(sorted(TOKEN_DTYPES)))
def test_gathered_spans_equal_their_twin(data, code):
    bounds = np.iinfo(TOKEN_DTYPES[code])
    tokens = st.lists(st.integers(int(bounds.min), int(bounds.max)), max_size=8)
    arrays, buffer, pointers = stored(data.draw(st.lists(tokens, min_size=1, max_size=6)), code)
    spans = []
    for sequence in data.draw(st.lists(st.integers(0, len(arrays) - 1), max_size=8)):
        start = data.draw(st.integers(0, len(arrays[sequence])))
        spans.append((sequence, start, data.draw(st.integers(0, len(arrays[sequence]) - start))))
    expected = np.concatenate([np.empty(0, TOKEN_DTYPES[code]), *windows.gather_spans(arrays, spans)])
    assert np.array_equal(gathered(buffer, pointers, code, spans), expected)


@pytest.mark.parametrize(
    ("span", "message"),
    [
        *((span, "span 0 is outside the dataset") for span in [(2, 0, 1), (-1, 0, 1), (0, -1, 1), (0, 0, -1)]),
        *((span, "leave the file of 12 bytes") for span in [(1, 0, 2), (1, 2, 1), (0, 4, 0)]),
    ],
)
def test_spans_beyond_the_data_are_refused(span, message):
    _, data, pointers = stored([[1, 2], [3]], 4)
    with pytest.raises(IndexError, match=message):
        gathered(data, pointers, 4, [span])
