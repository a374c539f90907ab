"""What a notebook shows of pairs."""

from __future__ import annotations

import os
import re
import shutil

from tests.rendering.cards import tables_of, tags_of, text_of
from tests.support import write_corpus

from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.verify import VerifyReport, verify_dataset
from tokenloom.rendering.words import name_of

HOSTILE = "<script>alert(1)</script>&\u202e\x1b[31m'\""


def test_a_pair_shows_its_counts(tmp_path):
    prefix = write_corpus(tmp_path / "a", [[1] * 16, [1] * 16, [1] * 100])
    dataset = IndexedDataset(prefix)
    assert tables_of(dataset._repr_html_()) == [
        [
            ["documents", "3"],
            ["tokens", "132"],
            ["mean length", "44.0 tokens"],
            ["dtype", "uint16"],
            ["size", "264 bytes"],
        ]
    ]
    assert text_of(dataset._repr_html_()).startswith("IndexedDataset " + name_of(prefix, width=120))


def test_a_pair_that_is_not_open_shows_what_is_known_and_stays_closed(tmp_path):
    prefix = write_corpus(tmp_path / "a", [[1] * 16])
    dataset = IndexedDataset(prefix, fast_cache_load=True, sequences_per_dataset=(3, 4))
    for suffix in (".bin", ".idx"):
        os.remove(prefix + suffix)
    assert tables_of(dataset._repr_html_()) == [[["documents", "3"]]]
    assert not dataset.is_open


def test_a_pair_that_went_away_is_still_shown(tmp_path):
    (tmp_path / "folder").mkdir()
    prefix = write_corpus(tmp_path / "folder" / "a", [[1] * 16])
    dataset = IndexedDataset(prefix, mmap=False)
    shutil.rmtree(tmp_path / "folder")
    assert ["documents", "1"] in tables_of(dataset._repr_html_())[0]


def test_an_empty_pair_is_shown(tmp_path):
    facts = tables_of(IndexedDataset(write_corpus(tmp_path / "a", []))._repr_html_())[0]
    assert ["tokens", "0"] in facts
    assert "mean length" not in [name for name, _ in facts]


def test_a_hostile_path_is_a_text(tmp_path):
    folder = tmp_path / HOSTILE.replace("/", "|")
    folder.mkdir()
    shown = IndexedDataset(write_corpus(folder / "a", [[1]]))._repr_html_()
    assert "script" not in tags_of(shown)
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert re.search(r"&lt;script&gt;alert\(1\)", shown)


def test_a_check_says_what_is_wrong(tmp_path):
    sound = verify_dataset(write_corpus(tmp_path / "a", [[1, 7]]))
    assert tables_of(sound._repr_html_()) == [
        [
            ["sound", "yes"],
            ["tokens read", "2"],
            ["smallest token", "1"],
            ["largest token", "7"],
            ["compared with a manifest", "no"],
        ]
    ]
    problems = tuple(f"<{number}>" for number in range(30))
    broken = VerifyReport(num_tokens=0, smallest_token=None, largest_token=None, problems=problems)
    alarms = re.findall(r'role="alert">(.*?)</p>', broken._repr_html_())
    assert alarms == [*(f"&lt;{number}&gt;" for number in range(10)), "and 20 more"]
