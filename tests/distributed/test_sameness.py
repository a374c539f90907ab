"""Real processes with other settings or data than the rest, which are told before anything is built."""

from __future__ import annotations

import pytest
from tests.support import write_corpus

pytest.importorskip("torch")


@pytest.fixture
def prefixes(tmp_path):
    (tmp_path / "data").mkdir()
    return [write_corpus(tmp_path / "data" / str(number), [[number + 1] * 9] * (60 + number)) for number in range(3)]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"random_seed": 4}, "random_seed: 3 on ranks 0, 2-3, 4 on rank 1"),
        ({"weights": [1.0, 2.0]}, '"1 x 1.0" ] on ranks 0, 2-3, [ "0 x 1.0", "1 x 2.0" ] on rank 1'),
        ({"sizes": [61, 9, 0]}, "sizes: [60, 9, 0] on ranks 0, 2-3, [61, 9, 0] on rank 1"),
        ({"window_policy": "best_fit"}, 'window_policy: "concat" on ranks 0, 2-3, "best_fit" on rank 1'),
        ({"path_to_cache": None}, 'path_to_cache: "a folder" on ranks 0, 2-3, "beside the data" on rank 1'),
    ],
)
def test_a_rank_with_another_setting_is_told_with_both_values(run, prefixes, change, told):
    outcomes = run("build_differently", prefixes=prefixes[:2], changes=[{}, change, {}, {}])
    assert {kind for kind, _ in outcomes.errors} == {"DivergenceError"}
    for _, message in outcomes.errors:
        assert message.startswith("ranks differ in ")
        assert told in message
    assert not (outcomes.shared / "cache").exists()
    assert not list(outcomes.shared.glob("indices-built-*"))


def test_a_rank_with_other_data_under_the_same_name_is_told(run, prefixes, tmp_path):
    (tmp_path / "other").mkdir()
    other = write_corpus(tmp_path / "other" / "0", [[2] * 9] * 59 + [[3] * 8])
    outcomes = run("build_differently", prefixes=prefixes[:1], changes=[{}, {"prefixes": [other]}, {}, {}])
    assert {kind for kind, _ in outcomes.errors} == {"DivergenceError"}
    assert "ranks differ in data 0 (`0`): 60 sequences and 61 boundaries of" in outcomes.errors[0][1]


def test_a_rank_with_the_same_data_elsewhere_passes(run, prefixes, tmp_path):
    (tmp_path / "other").mkdir()
    other = write_corpus(tmp_path / "other" / "0", [[1] * 9] * 60)
    changes = [{}, {"prefixes": [other], "num_dataset_builder_threads": 2, "mmap_bin_files": False}]
    outcomes = run("build_differently", prefixes=prefixes[:1], changes=[*changes, {}, {}])
    assert outcomes.results == [outcomes.results[0]] * 4
