"""Documents and records that are denied, and what that changes."""

from __future__ import annotations

import numpy as np
import pytest
from tests.run.changed_runs import changed_run
from tests.run.data import with_origins, write_lines_origins
from tests.run.folders import SOURCES, STAGE, make_run, texts, write_pair, write_toml
from tests.run.small_runs import tuples

from tokenloom.errors import ConfigError
from tokenloom.run.amend import Amendment, amend_run, deny_documents
from tokenloom.run.digest import order_digest
from tokenloom.run.held_out import are_held_out
from tokenloom.run.lock import read_lock
from tokenloom.run.locking import lock_run
from tokenloom.run.run import Run


def spots(table) -> list[tuple[int, ...]]:
    return sorted(tuples(table.positions, table.sources, table.documents, table.starts, table.lengths, table.slots))


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
    (tmp_path / "list.txt").write_text("# asked for in May\nweb:8\n\ncode.jsonl:3\n")
    denial = Amendment(position=100, denied_documents=("raw/code.jsonl:5", "web:2"), denied=str(tmp_path / "list.txt"))
    found = deny_documents(tmp_path / "run.toml", denial)
    assert {source: chosen.tolist() for source, chosen in found.documents.items()} == {0: [2, 8], 1: [3, 4]}
    assert found.amended.locked.empty_records == ("code.jsonl:3",)
    assert 'documents = ["raw/code.jsonl:5", "web:2"]' in (tmp_path / "run.toml").read_text()
    denials = [(each.start, each.documents) for each in found.amended.locked.lock.denials]
    assert denials == [(100, ((0, (8,)),)), (100, ((0, (2,)), (1, (3, 4))))]


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
    for position, message, *names in [
        (300, "nothing to change: .* documents to deny"),
        (300, "'wab:3': the run has no source 'wab'", "wab:3"),
        (300, "document `web:250` out of range: the source has 250", "web:250"),
        (300, "record 201 of `.*` out of range: records are 1 to 200", "code.jsonl:201"),
        (300, "no documents to deny: none came from code.jsonl:3", "code.jsonl:3"),
        (100, "position must be at least 200, the number of consumed positions, got 100", "web:3"),
        (601, "position 601 out of range: the run has 600 samples", "web:3"),
        (300, "no documents to deny: the list is empty", "empty.txt"),
        (300, "(?s)all documents of source 'code' are denied from position 300 on.*run amend", "all.txt"),
    ]:
        file = str(tmp_path / names[0]) if names and names[0].endswith(".txt") else None
        denial = Amendment(position=position, denied_documents=() if file else tuple(names), denied=file)
        with pytest.raises(ConfigError, match=message):
            deny_documents(path, denial)
    with pytest.raises(ConfigError, match="until must be at least 300, where the denial begins, got 299"):
        deny_documents(path, Amendment(position=300, denied_documents=("web:3",)), until=299, write=False)
    assert [(tmp_path / name).read_bytes() for name in ("run.toml", "run.lock")] == before
    path.write_text(path.read_text().replace("web = 3", "web = 4"))
    with pytest.raises(ConfigError, match="changed after it was locked"):
        deny_documents(path, Amendment(position=300, denied_documents=("web:3",)))


def denied(*tables: str) -> str:
    return STAGE + "".join(f"[[denied]]\n{table}\n" for table in tables)


def test_denials_may_stand_in_any_order(tmp_path):
    make_run(tmp_path)
    tables = [f'documents = ["web:{number}"]\nfrom = {start}' for number, start in ((1, 300), (2, 100), (3, 300))]
    lock = lock_run(write_toml(tmp_path, denied(*tables)), consumed=0).lock
    assert [(each.start, each.documents) for each in lock.denials] == [
        (100, ((0, (2,)),)), (300, ((0, (1,)),)), (300, ((0, (3,)),)),
    ]  # fmt: skip
    assert read_lock(str(tmp_path / "run.lock")) == lock


def test_a_record_that_comes_once_more_leaves_the_past_as_it_was(tmp_path):
    make_run(tmp_path)
    with_origins(tmp_path)
    sources = '[sources]\nweb = "web-*"\ncode = "code*"\n'
    path = write_toml(tmp_path, denied('documents = ["code.jsonl:2"]\nfrom = 100'), sources=sources)
    old = lock_run(path, consumed=0).lock
    expected = texts(Run.open(path).dataset(), range(250))
    write_pair(tmp_path / "code-2", 60, first=10**6, seed=9)
    write_lines_origins(str(tmp_path / "code-2"), [(0, 1, 60)], path="raw/code.jsonl", num_records=200)
    new = amend_run(path, Amendment(position=250, grows=True)).locked.lock
    assert [(each.start, each.documents) for each in new.denials] == [(100, ((1, (1,)),)), (250, ((1, (141,)),))]
    assert order_digest(new, 250) == order_digest(old, 250)
    dataset = Run.open(path).dataset()
    assert texts(dataset, range(250)) == expected
    document = range(10**6, 10**6 + 2000)
    length = np.random.default_rng(9).integers(1, 40, size=60).tolist()
    gone = set(document[length[0] : length[0] + length[1]])
    assert not gone & set(dataset.batch(range(250, 600))["tokens"].ravel().tolist())


def test_a_reason_decides_nothing(tmp_path):
    make_run(tmp_path)
    path = write_toml(tmp_path, denied('documents = ["web:1"]'))
    lock = lock_run(path, consumed=0).lock
    path.write_text(path.read_text() + 'reason = "a letter of May"\n')
    assert Run.open(path).lock == lock


def test_something_has_to_be_left_of_a_source(tmp_path):
    make_run(tmp_path)
    everything = [f"code:{number}" for number in range(140)]
    (tmp_path / "list.txt").write_text("\n".join(everything[1:]))
    path = write_toml(tmp_path, denied('documents = "list.txt"\nfrom = 300'))
    assert len(lock_run(path, consumed=0).lock.denials) == 1
    two = STAGE.replace("600", "300") + '[[stages]]\nname = "web only"\nsamples = 300\nweights = { web = 1 }\n'
    (tmp_path / "list.txt").write_text("\n".join(everything))
    path = write_toml(tmp_path, two + '[[denied]]\ndocuments = "list.txt"\nfrom = 300\n')
    assert len(lock_run(path, consumed=0).lock.denials) == 1
