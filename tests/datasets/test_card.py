"""Notebook cards of datasets: shown without opening data or building indices."""

from __future__ import annotations

from tests.rendering.cards import tables_of
from tests.support import make_dataset, write_corpus

DOCUMENTS = [[1, 2, 3, 9], [4, 5, 6, 7, 8, 9], [10, 11, 9]]


def test_gpt_samples_show_their_epochs_and_their_pair(tmp_path):
    dataset = make_dataset(write_corpus(tmp_path / "a", DOCUMENTS), num_samples=5)
    (shown,) = tables_of(dataset._repr_html_())
    assert shown[1:] == [
        ["split", "train"],
        ["samples", "6"],
        ["epochs", "2"],
        ["tokens of an epoch", "13"],
        ["documents exposed", "3 of 3"],
        ["windows", "concat"],
        ["sequence length", "4"],
        ["seed", f"{dataset.config.random_seed:,}"],
        ["path of the pair", shown[0][1]],
        ["documents of the pair", "3"],
        ["sequences of the pair", "3"],
        ["tokens of the pair", "13"],
        ["dtype of the pair", "uint16"],
        ["bytes of the pair", "26"],
    ]
