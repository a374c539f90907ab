import re

import numpy as np
import pytest
from tests.indexed.pairs import write_pair
from tests.rendering.cards import tables_of, tags_of, text_of
from tests.support import write_corpus

from tokenloom import IndexedDatasetBuilder
from tokenloom.indexed.dataset import PERCENTILES, DatasetStatistics, IndexedDataset
from tokenloom.rendering.words import name_of


@pytest.fixture
def statistics_of(tmp_path):

    def make(lengths):
        with IndexedDatasetBuilder(f"{tmp_path}/made.bin", dtype=np.uint16) as builder:
            builder.append_block(np.zeros(sum(lengths), dtype=np.uint16), np.array(lengths, dtype=np.int32))
            builder.finalize(f"{tmp_path}/made.idx")
        return IndexedDataset(f"{tmp_path}/made").statistics()

    return make


def test_statistics_of_a_small_dataset(tmp_path):
    prefix = write_pair(tmp_path / "corpus", [[[1, 2, 3], [4]], [[]], [[5, 6]], []], dtype=np.uint16)
    assert IndexedDataset(prefix).statistics() == DatasetStatistics(
        num_sequences=4,
        num_documents=4,
        num_tokens=6,
        num_bytes=12,
        dtype="uint16",
        shortest=0,
        longest=3,
        mean_length=1.5,
        num_empty=1,
        percentiles=((1, 0), (5, 0), (25, 0), (50, 1), (75, 2), (95, 2), (99, 2)),
        histogram=((0, 1, 1), (1, 2, 1), (2, 4, 2)),
    )


def test_statistics_agree_with_numpy(rng, statistics_of):
    lengths = rng.integers(0, 5000, size=int(rng.integers(1, 500))).tolist()
    statistics = statistics_of(lengths)
    assert statistics.mean_length == pytest.approx(np.mean(lengths))
    assert (statistics.shortest, statistics.longest) == (min(lengths), max(lengths))
    assert sum(count for _, _, count in statistics.histogram) == len(lengths)
    for start, stop, count in statistics.histogram:
        assert count == sum(start <= length < stop for length in lengths)
    ordered = sorted(lengths)
    assert [percent for percent, _ in statistics.percentiles] == list(PERCENTILES)
    for percent, tokens in statistics.percentiles:
        assert tokens == ordered[(len(lengths) - 1) * percent // 100]


HOSTILE = "<script>alert(1)</script>&\u202e\x1b[31m'\""


def test_a_pair_shows_its_counts(tmp_path):
    prefix = write_corpus(tmp_path / "a", [[1] * 16, [1] * 16, [1] * 100])
    dataset = IndexedDataset(prefix)
    assert tables_of(dataset._repr_html_()) == [
        [
            ["path", name_of(prefix, width=120)],
            ["documents", "3"],
            ["sequences", "3"],
            ["tokens", "132"],
            ["dtype", "uint16"],
            ["bytes", "264"],
        ]
    ]
    assert text_of(dataset._repr_html_()).startswith("IndexedDataset")


def test_a_hostile_path_is_a_text(tmp_path):
    folder = tmp_path / HOSTILE.replace("/", "|")
    folder.mkdir()
    shown = IndexedDataset(write_corpus(folder / "a", [[1]]))._repr_html_()
    assert "script" not in tags_of(shown)
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert re.search(r"&lt;script&gt;alert\(1\)", shown)
