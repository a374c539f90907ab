"""Targets of report and explorer, and names that lead to nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.inspect.targets import TEXTS, write_pair, write_run
from tests.support import write_sentences

from tokenloom import Run
from tokenloom.errors import ConfigError, DatasetNotFoundError
from tokenloom_look.target import SampleSettings, TargetKind, open_target


def test_a_prefix_is_a_pair_with_documents_and_samples(tmp_path: Path):
    prefix = write_pair(tmp_path / "corpus")
    target = open_target([f"{prefix}.idx"], tokenizer="byte", settings=SampleSettings(sequence_length=8))
    assert (target.kind, target.name, target.notes) == (TargetKind.pair, prefix, ())
    assert [(source.num_documents, source.num_tokens) for source in target.sources] == [(3, 57)]
    assert "".join(token.text for token in target.document(0, 1).tokens[:-1]) == TEXTS[1]
    assert target.num_positions == 7
    assert len(target.sample(2).tokens) == 9
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.bin", "corpus.idx"]


def test_blends_of_arguments_and_of_files(tmp_path: Path):
    one, two = write_pair(tmp_path / "one"), write_pair(tmp_path / "two", ("a", "b"))
    target = open_target(["30", one, "70", two])
    assert target.kind is TargetKind.blend
    found = [(source.name, source.weight, source.num_documents) for source in target.sources]
    assert found == [(one, 30.0, 3), (two, 70.0, 2)]
    assert target.num_positions is None
    listed = tmp_path / "blend.txt"
    listed.write_text(f"30 {one}\n70 {two}\n")
    assert open_target([str(listed)]).blend == target.blend
    with pytest.raises(ConfigError, match=r"the blend .* has no samples\nhint: pass a pair"):
        target.sample(0)


def test_a_run_has_its_sources_and_positions(tmp_path: Path):
    target = open_target([write_run(tmp_path)])
    assert (target.kind, target.num_positions) == (TargetKind.run, 4)
    assert [source.name for source in target.sources] == ["web"]
    assert target.notes == ("the run has no tokenizer: tokens are shown as ids",)
    assert len(target.sample(3).tokens) == 9
    assert target.document(0, 2).heading == "document 2 of web"


def test_opening_a_run_without_a_lock_is_an_error(tmp_path: Path):
    path = write_run(tmp_path, locked=False)
    with pytest.raises(ConfigError, match=r"is not locked\nhint: lock it: tokenloom run lock"):
        open_target([path])
    assert not (tmp_path / "run.lock").exists()


def test_documents_of_pairs_are_numbered_by_source(tmp_path: Path):
    for name, lengths in (("a", (4, 0, 9)), ("b", (0, 5, 30))):
        write_sentences(tmp_path / name, [[[7] * length] if length else [] for length in lengths])
    (tmp_path / "run.toml").write_text(
        "order = 1\nseed = 3\n[sources]\nboth = ['a', 'b']\n"
        "[[stages]]\nsequence_length = 8\nsamples = 4\nweights = { both = 1 }\n"
    )
    Run.open(tmp_path / "run.toml")
    blend = open_target([str(tmp_path / "a"), str(tmp_path / "b")])
    assert [blend.named(*place) for place in ((0, 2), (1, 1), (1, 2))] == [(0, 2), (1, 1), (1, 2)]
    run = open_target([str(tmp_path / "run.toml")])
    names = [run.named(*place) for place in ((0, 0), (0, 2), (1, 1), (1, 2))]
    assert names == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert [run.document(*name).num_tokens for name in names] == [4, 9, 5, 30]
    assert run.document(0, 3).heading == "document 3 of both"


def test_missing_targets_are_named(tmp_path: Path):
    with pytest.raises(DatasetNotFoundError, match=r"no dataset, run or job at `.*nothing_here`\nhint: pass a prefix"):
        open_target([str(tmp_path / "nothing_here")])
    (tmp_path / "half.idx").write_bytes(b"")
    with pytest.raises(DatasetNotFoundError, match=r"no file `.*half\.bin`"):
        open_target([str(tmp_path / "half")])
    with pytest.raises(DatasetNotFoundError, match="'nothing_here' in the blend"):
        open_target(["30", write_pair(tmp_path / "one"), "70", "nothing_here"])
    with pytest.raises(DatasetNotFoundError, match=r"no file `.*missing\.toml`"):
        open_target([str(tmp_path / "missing.toml")])
