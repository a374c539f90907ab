"""Pictures of how long sequences are."""

from __future__ import annotations

import numpy as np
import pytest
from tests.rendering.figure_parts import legend_of, title_of
from tests.support import write_corpus

from tokenloom.errors import ConfigError, DatasetFormatError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.length_histogram import LengthHistogram, length_histogram
from tokenloom.indexed.plot import plot_lengths


def histogram(*lengths: int) -> LengthHistogram:
    return length_histogram([np.array(lengths, dtype=np.int32)])


def test_a_pair_draws_its_documents_and_tokens(tmp_path):
    dataset = IndexedDataset(write_corpus(tmp_path / "a", [[1] * 16, [1] * 16, [1] * 100, []]))
    figure = dataset.plot_lengths(path=tmp_path / "a.png")
    axes = figure.axes[0]
    assert title_of(axes) == "4 documents, 1 of them empty, 132 tokens, 33 on average"
    assert legend_of(axes) == ["documents", "tokens"]
    documents = axes.patches[0]
    assert documents.get_data().edges[[0, -1]].tolist() == [16, 108]
    assert documents.get_data().values[0] == pytest.approx(0.5 / np.log2(19 / 16) / 4)
    drawn = [patch.get_data() for patch in axes.patches]
    areas = [float((4 * each.values * np.diff(np.log2(each.edges))).sum()) for each in drawn]
    assert areas == pytest.approx([0.75, 1.0])  # an empty one is on no scale of doublings
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_data_without_a_sequence_have_no_picture(tmp_path):
    dataset = IndexedDataset(write_corpus(tmp_path / "a", []))
    with pytest.raises(ConfigError, match="expected documents to draw the lengths of, found none"):
        dataset.plot_lengths()


@pytest.mark.parametrize("lengths", [[0], [0, 0, 1], [1, 2**31 - 1]])
def test_extreme_lengths_are_drawn(lengths: list[int]):
    figure = plot_lengths({"a": histogram(*lengths)}, what="sequence")
    assert figure._repr_png_()[0].startswith(b"\x89PNG")


def test_of_many_datasets_the_largest_have_a_colour_of_their_own():
    many = {f"$s{number}": histogram(*[100] * (number + 1)) for number in range(200)}
    axes = plot_lengths(many, what="sequence").axes[0]
    assert legend_of(axes) == [*(rf"\$s{number}" for number in range(199, 187, -1)), "188 others", "tokens"]
    top = [float(patch.get_data().values[0]) for patch in axes.patches[:-1]]
    assert top == sorted(top)
    assert top[-1] == pytest.approx(1 / np.log2(108 / 91) / 4)


def test_damaged_lengths_are_no_picture(tmp_path):
    prefix = write_corpus(tmp_path / "a", [[1] * 16, [1] * 16])
    data = bytearray((tmp_path / "a.idx").read_bytes())
    assert data[34:38] == (16).to_bytes(4, "little")
    data[34:38] = (12).to_bytes(4, "little")
    (tmp_path / "a.idx").write_bytes(data)
    with pytest.raises(DatasetFormatError, match="expected lengths from 0 on that add up to 32 tokens, found 28"):
        IndexedDataset(prefix).plot_lengths()
