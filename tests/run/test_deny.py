"""Documents that are taken out of a run, and what that changes."""

from __future__ import annotations

import numpy as np
import pytest
from tests.run.changed_runs import changed_run
from tests.run.folders import SOURCES, make_run, texts
from tests.run.recorded import with_origins

from tokenloom.errors import ConfigError
from tokenloom.run.amend import Amendment, deny_documents
from tokenloom.run.held_out import are_held_out
from tokenloom.run.lock import read_lock
from tokenloom.run.locking import lock_run
from tokenloom.run.run import Run


def spots(table) -> list[tuple[int, ...]]:
    columns = (table.positions, table.sources, table.documents, table.starts, table.lengths, table.slots)
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


def test_what_changes_is_what_is_said_and_nothing_else(tmp_path, rng):
    run = changed_run(tmp_path, rng)
    end, path = run.num_samples, tmp_path / "run.toml"
    before, samples = run.trace(np.arange(end)), texts(run.dataset(), range(end))
    position = run.lock.consumed + 1
    names = [f"web:{number}" for number in rng.integers(0, 250, size=5)] + ["code:7"]
    found = deny_documents(
        path, Amendment(position=position, denied_documents=tuple(names), reason="a letter"), since_start=True
    )
    after = Run.open(path)
    assert 'reason = "a letter"' in path.read_text()
    assert read_lock(str(tmp_path / "run.lock")) == after.lock == found.amended.locked.lock
    table = after.trace(np.arange(end))
    assert spots(table) == spots(before)
    changed = table.take(table.denied & ~before.denied)
    assert spots(found.changed) == spots(changed)
    assert found.nothing_else_moved
    assert found.stop == end
    asked = np.isin(np.char.add("web:", before.documents.astype(str)), names) & (before.sources == 0)
    asked |= (before.sources == 1) & (before.documents == 7)
    assert spots(found.seen) == spots(before.take(asked & ~before.denied & (before.positions < position)))
    again = texts(after.dataset(), range(end))
    moved = {number for number in range(end) if again[number] != samples[number]}
    assert moved <= set(changed.positions.tolist())
    ends = changed.slots + changed.lengths == before.lengths.max() + 1  # of one a label alone may be denied
    assert len(moved) >= len(set(changed.positions[~ends].tolist())) - sum(changed.lengths == 1)


def test_a_dry_run_changes_no_file(tmp_path):
    make_run(tmp_path)
    before = [(tmp_path / name).read_bytes() for name in ("run.toml", "run.lock")]
    found = deny_documents(tmp_path / "run.toml", Amendment(position=200, denied_documents=("web:3",)), write=False)
    assert len(found.changed)
    assert [(tmp_path / name).read_bytes() for name in ("run.toml", "run.lock")] == before
    written = deny_documents(tmp_path / "run.toml", Amendment(position=200, denied_documents=("web:3",)))
    assert spots(written.changed) == spots(found.changed)
    assert written.amended.locked.lock == found.amended.locked.lock


def test_records_and_lists(tmp_path):
    make_run(tmp_path)
    with_origins(tmp_path)
    (tmp_path / "list.txt").write_text("web:8\ncode.jsonl:3\n")
    denial = Amendment(position=100, denied_documents=("code.jsonl:5", "web:2"), denied=str(tmp_path / "list.txt"))
    found = deny_documents(tmp_path / "run.toml", denial)
    assert {source: chosen.tolist() for source, chosen in found.documents.items()} == {0: [2, 8], 1: [3, 4]}
    assert found.amended.locked.empty_records == ("code.jsonl:3",)
    assert 'documents = ["code.jsonl:5", "web:2"]' in (tmp_path / "run.toml").read_text()
    assert [len(each.documents) for each in found.amended.locked.lock.denials] == [1, 2]


def test_what_is_held_out_is_told(tmp_path):
    run = make_run(tmp_path, sources=SOURCES.replace('"web-*"', '{ data = "web-*", holdout = "20%" }'))
    held = np.flatnonzero(are_held_out(run.lock, 0, np.arange(250)))[:2].tolist()
    names = tuple(f"web:{number}" for number in held)
    found = deny_documents(tmp_path / "run.toml", Amendment(position=100, denied_documents=names))
    assert {source: chosen.tolist() for source, chosen in found.held_out.items()} == {0: held}
    assert len(found.changed) == 0
    valid = Run.open(tmp_path / "run.toml").holdout("web")
    spans = np.concatenate([valid.spans(number).documents for number in range(len(valid))])
    assert {-1 - held[0], -1 - held[1]} <= set(spans.tolist())


def test_what_cannot_be_denied(tmp_path):
    make_run(tmp_path)
    with_origins(tmp_path)
    path = tmp_path / "run.toml"
    lock_run(path, consumed=200)
    (tmp_path / "empty.txt").write_text("# nothing\n")
    (tmp_path / "all.txt").write_text("\n".join(f"code:{number}" for number in range(140)))
    before = [(tmp_path / name).read_bytes() for name in ("run.toml", "run.lock")]
    for denial, message in [
        (Amendment(position=300), "expected a change: .* documents to deny"),
        (Amendment(position=300, denied_documents=("wab:3",)), "of a source of this run, found 'wab:3'"),
        (Amendment(position=300, denied_documents=("web:250",)), r"in \[0, 250\), found `web:250`"),
        (Amendment(position=300, denied_documents=("code.jsonl:201",)), "which has 200, found 201"),
        (
            Amendment(position=300, denied_documents=("code.jsonl:3",)),
            "expected documents to deny, found none: code.jsonl:3",
        ),
        (Amendment(position=300, denied=str(tmp_path / "empty.txt")), "found none: the list is empty"),
        (Amendment(position=300, denied=str(tmp_path / "all.txt")), "of source 'code' that are not denied, found none"),
        (
            Amendment(position=100, denied_documents=("web:3",)),
            "training has read the 200 positions before 200, found a change at 100",
        ),
        (Amendment(position=601, denied_documents=("web:3",)), "expected a position in the run, up to 600, found 601"),
    ]:
        with pytest.raises(ConfigError, match=message):
            deny_documents(path, denial)
    with pytest.raises(ConfigError, match="to list changes up to position 300 or a later one, found 299"):
        deny_documents(path, Amendment(position=300, denied_documents=("web:3",)), until=299, write=False)
    assert [(tmp_path / name).read_bytes() for name in ("run.toml", "run.lock")] == before
    path.write_text(path.read_text().replace("web = 3", "web = 4"))
    with pytest.raises(ConfigError, match="as it was locked, found it changed since"):
        deny_documents(path, Amendment(position=300, denied_documents=("web:3",)))
