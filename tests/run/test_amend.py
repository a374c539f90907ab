"""Changes of a run from a position on: there as a whole or not at all, and nothing is dropped unasked."""

import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.runs import RUN, lock_of, write_run
from tests.faults import dies_at, fills_at
from tests.run.data import with_origins, write_lines_origins, write_source
from tests.run.folders import SOURCES, STAGE, changed_run, make_run, shares, start, texts, write_pair, write_toml
from tests.run.small_runs import tuples

from tokenloom.errors import ConfigError, OutputBusyError
from tokenloom.run.amend import Amendment, amend_run, deny_documents
from tokenloom.run.digest import order_digest
from tokenloom.run.held_out import are_held_out
from tokenloom.run.lock import lock_path, read_lock
from tokenloom.run.locking import lock_run
from tokenloom.run.run import Run
from tokenloom.run.timeline import Timeline
from tokenloom.storage.publishing import OutputLock


def test_stages_that_follow_stay(tmp_path):
    path = start(tmp_path, RUN + '\n[[stages]]\nname = "last"\nweights = { web = 1 }\n')
    lock = amend_run(path, Amendment(position=30, weights=shares(code=1))).locked.lock
    expected = [("main", 0, 30), ("from 30", 30, 70), ("last", 100, None)]
    assert [(each.stage, each.start, each.num_samples) for each in lock.segments] == expected
    lock = amend_run(path, Amendment(position=500, weights=shares(code=1))).locked.lock
    assert [each.start for each in lock.segments] == [0, 30, 100, 500]
    with pytest.raises(ConfigError, match="position 500 is where stage 'from 500' begins"):
        amend_run(path, Amendment(position=500, weights=shares(code=1)))


def test_a_stage_of_passes_is_cut_with_its_weights(tmp_path):
    path = start(tmp_path, RUN.replace("samples = 100\n", "").replace("weights", "passes"))
    old = lock_of(path)
    lock = amend_run(path, Amendment(position=30, weights=shares(code=1))).locked.lock
    assert lock.segments[0].weights == old.segments[0].weights
    assert order_digest(lock, 30) == order_digest(old, 30)


def test_the_new_stage_takes_what_is_left_and_names_are_new_or_there(tmp_path):
    path = start(tmp_path)
    with pytest.raises(ConfigError, match="already has a source 'web'"):
        amend_run(path, Amendment(position=30, sources={"web": "w"}))
    with pytest.raises(ConfigError, match="did you mean `web`"):
        amend_run(path, Amendment(position=30, denied_documents=("wbe:1",)))
    amended = amend_run(path, Amendment(position=30, weights=shares(code=1)))
    segments = amended.locked.lock.segments
    assert [(each.start, each.num_samples) for each in segments] == [(0, 30), (30, 70)]
    again = amend_run(path, Amendment(position=50, sequence_length=8))
    assert [(each.start, each.num_samples) for each in again.locked.lock.segments] == [(0, 30), (30, 20), (50, 100)]
    assert lock_of(path) == again.locked.lock


KINDS = st.sampled_from(["weights", "length", "source", "grow", "deny"])


@given(st.lists(st.tuples(st.integers(1, 60), KINDS, st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=5))
def test_no_row_of_changes_moves_what_lies_before_them(changes):
    with TemporaryDirectory() as folder:
        path = start(Path(folder), RUN.replace("samples = 100", "samples = 400"))
        position = 0
        for number, (distance, kind, one, other) in enumerate(changes):
            position += distance
            old = lock_of(path)
            amendment = Amendment(position=position, weights=shares(web=one, code=other))
            if kind == "length":
                amendment = Amendment(position=position, sequence_length=8 + 8 * (number % 2))
            elif kind == "source":
                data = write_source(f"{folder}/more{number}", *[20] * 30)
                weights = shares(code=1, **{f"more{number}": other})
                amendment = Amendment(position=position, sources={f"more{number}": data}, weights=weights)
            elif kind == "grow":
                write_source(f"{folder}/data/web_more{number}", *[10 * other] * 10)
                amendment = Amendment(position=position, grows=True)
            elif kind == "deny":
                Path(f"{folder}/deny{number}").write_text(f"web:{one}\ncode:{other}\n")
                amendment = Amendment(position=position, denied=f"{folder}/deny{number}")
            new = amend_run(path, amendment).locked.lock
            assert order_digest(new, position) == order_digest(old, position)
            before, after = (Timeline(lock).locate(np.arange(position)) for lock in (old, new))
            assert tuples(*before[1:]) == tuples(*after[1:])


# --- denied documents and records -----------------------------------------------------------------------------------
def spots(table) -> list[tuple[int, ...]]:
    return sorted(tuples(table.positions, table.sources, table.documents, table.starts, table.lengths, table.slots))


def test_what_changes_is_what_is_said_and_nothing_else(tmp_path, rng):
    run = changed_run(tmp_path, rng)
    end, path = run.num_samples, tmp_path / "run.toml"
    before, samples = run.trace(np.arange(end)), texts(run.dataset(), range(end))
    position = run.lock.consumed + 1
    names = [f"web:{number}" for number in rng.integers(0, 250, size=5)] + ["code:7"]
    denial = Amendment(position=position, denied_documents=tuple(names), reason="a letter")
    found = deny_documents(path, denial, since_start=True)
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


def test_records_and_lists_and_a_dry_run_that_changes_no_file(tmp_path):
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
    before = files(tmp_path / "run.toml")
    found = deny_documents(tmp_path / "run.toml", Amendment(position=200, denied_documents=("web:3",)), write=False)
    assert len(found.changed)
    assert files(tmp_path / "run.toml") == before
    written = deny_documents(tmp_path / "run.toml", Amendment(position=200, denied_documents=("web:3",)))
    assert spots(written.changed) == spots(found.changed)
    assert written.amended.locked.lock == found.amended.locked.lock


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
    before = files(path)
    for position, message, *names in [
        (300, "nothing to change: .* documents to deny"),
        (300, "'wab:3': the run has no source 'wab'", "wab:3"),
        (300, "document `web:250` out of range: the source has 250", "web:250"),
        (300, "record 201 of `.*` out of range: records are 1 to 200", "code.jsonl:201"),
        (300, "no documents to deny: none was made from code.jsonl:3", "code.jsonl:3"),
        (100, "position must be at least 200, the number of consumed positions, got 100", "web:3"),
        (601, "position 601 out of range: the run has 600 samples", "web:3"),
        (300, "no documents to deny: the list is empty", "empty.txt"),
        (300, "(?s)all documents of source 'code' are denied or held out from position 300 on.*run amend", "all.txt"),
    ]:
        file = str(tmp_path / names[0]) if names and names[0].endswith(".txt") else None
        denial = Amendment(position=position, denied_documents=() if file else tuple(names), denied=file)
        with pytest.raises(ConfigError, match=message):
            deny_documents(path, denial)
    with pytest.raises(ConfigError, match="`until` must be at least 300, the position of the denial, got 299"):
        deny_documents(path, Amendment(position=300, denied_documents=("web:3",)), until=299, write=False)
    assert files(path) == before
    path.write_text(path.read_text().replace("web = 3", "web = 4"))
    with pytest.raises(ConfigError, match="changed after it was locked"):
        deny_documents(path, Amendment(position=300, denied_documents=("web:3",)))


def denied(*tables: str) -> str:
    return STAGE + "".join(f"[[denied]]\n{table}\n" for table in tables)


def test_denials_may_stand_in_any_order_and_have_reasons(tmp_path):
    make_run(tmp_path)
    tables = [f'documents = ["web:{number}"]\nfrom = {start}' for number, start in ((1, 300), (2, 100), (3, 300))]
    path = write_toml(tmp_path, denied(*tables))
    lock = lock_run(path, consumed=0).lock
    expected = [(100, ((0, (2,)),)), (300, ((0, (1,)),)), (300, ((0, (3,)),))]
    assert [(each.start, each.documents) for each in lock.denials] == expected
    assert read_lock(str(tmp_path / "run.lock")) == lock
    path.write_text(path.read_text() + 'reason = "a letter of May"\n')
    assert Run.open(path).lock == lock


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


# --- wholes ---------------------------------------------------------------------------------------------------------

DENIED = RUN + '\n[[denied]]\ndocuments = ["web:5"]\nfrom = 30\n'
WAYS = {
    "amend": lambda path: amend_run(path, Amendment(position=30, weights=shares(code=1))),
    "deny": lambda path: deny_documents(path, Amendment(position=30, denied_documents=("web:5",))),
    "lock": lambda path: lock_run(path, consumed=20),
}


def files(path: Path) -> tuple[bytes, bytes]:
    return path.read_bytes(), path.with_suffix(".lock").read_bytes()


def sides(folder: Path, change: Callable[[Path], object]) -> tuple[Path, tuple[bytes, bytes], tuple[bytes, bytes]]:
    """Returns a run, its two files, and what they are once it has changed."""
    path = start(folder)
    before = files(path)
    change(path)
    after = files(path)
    assert before != after
    return path, before, after


def put(path: Path, state: tuple[bytes, bytes]) -> None:
    for left in path.parent.glob(".run.*"):
        left.unlink()
    path.write_bytes(state[0])
    path.with_suffix(".lock").write_bytes(state[1])


DEATHS = [
    *(pytest.param(name, 5, id=name) for name in ("amend", "lock")),
    *(pytest.param(name, 1, marks=pytest.mark.slow, id=f"{name}-every") for name in WAYS),
]
"""What changes, and from which call to which next one it dies; with 1, also at calls that change no names."""


@pytest.mark.parametrize(("name", "step"), DEATHS)
def test_a_death_at_any_call_leaves_old_or_new(tmp_path, name, step):
    path, before, after = sides(tmp_path, WAYS[name])
    for number in count(0, step):
        put(path, before)
        died = dies_at(tmp_path, number, lambda: WAYS[name](path), every=step == 1)
        assert Run.open(path).num_samples == 100
        assert files(path) in (before, after), number
        if not died:
            break
        lock_run(path)
        assert files(path) in (before, after), number
    assert number > 3
    assert files(path) == after


@pytest.mark.slow
@pytest.mark.parametrize("name", WAYS)
def test_a_disk_that_fills_up_at_any_call_leaves_old_or_new(tmp_path, name):
    path, before, after = sides(tmp_path, WAYS[name])
    for number in count():
        put(path, before)
        failed = fills_at(tmp_path, number, lambda: WAYS[name](path))
        Run.open(path)
        assert files(path) in ((before, after) if failed else (after,)), number  # syncing the folder comes last
        if failed is None:
            break
    assert number > 3


@pytest.mark.parametrize("name", ["amend", "lock"])
def test_a_change_waits_for_no_other(tmp_path, name):
    path = start(tmp_path)
    before = files(path)
    with OutputLock(lock_path(str(path))), pytest.raises(OutputBusyError, match=r"run\.lock` is being written"):
        WAYS[name](path)
    assert files(path) == before


@pytest.mark.slow
def test_a_run_is_read_while_another_process_changes_it(tmp_path):
    path = start(tmp_path)
    child = os.fork()
    if child == 0:
        for number in range(4):
            amend_run(path, Amendment(position=30 + number, weights=shares(code=1 + number % 2)))
        os._exit(0)
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        assert Run.open(path).num_samples == 100


def test_ranks_that_open_a_run_without_a_lock_lock_it_together(tmp_path):
    path = write_run(tmp_path)
    children = []
    for _ in range(4):
        children.append(os.fork())
        if children[-1] == 0:
            os._exit(0 if Run.open(path).num_samples == 100 else 1)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4


def test_no_denial_is_dropped_unasked(tmp_path):
    path = start(tmp_path)
    text = path.read_text()
    amend_run(path, Amendment(position=30, denied_documents=("web:5", "code:7")))
    path.write_text(text)  # as it was before the denial
    before = path.with_suffix(".lock").read_bytes()
    message = "removes locked denials, or begins them later: web:5 from position 30 on, code:7 from position 30 on"
    for consumed in (None, 0, 30):
        with pytest.raises(ConfigError, match=f"{message}\nhint: restore `\\[\\[denied\\]\\]`"):
            lock_run(path, consumed=consumed)
    assert path.with_suffix(".lock").read_bytes() == before
    dropped = lock_run(path, consumed=0, drop=("denials",))
    assert dropped.dropped == ("web:5 from position 30 on", "code:7 from position 30 on")
    assert lock_of(path).denials == ()


@pytest.mark.parametrize(
    ("text", "dropped"),
    [
        (DENIED, ()),
        (DENIED.replace("from = 30", "from = 10"), ()),
        (DENIED.replace("from = 30", "from = 31"), ("web:5 from position 30 on",)),
        (DENIED.replace("web:5", "web:6"), ("web:5 from position 30 on",)),
        (DENIED.replace("web:5", "page:5").replace("web =", "page ="), ()),
        (RUN.replace("web =", "page =").replace("web = 3", "page = 3"), ("web:5 from position 30 on",)),
        (RUN.replace("data/code", "data/web0").replace("data/web*", "data/code"), ("web:5 from position 30 on",)),
    ],
)
def test_what_counts_as_dropped(tmp_path, text, dropped):
    path = write_run(tmp_path, DENIED)
    lock_run(path)
    path.write_text(text.replace("web = 3", "page = 3") if "page:5" in text else text)
    assert lock_run(path, consumed=0, drop=("denials",)).dropped == dropped


def test_what_was_consumed_is_dropped_by_name_alone(tmp_path):
    path = start(tmp_path)
    lock_run(path, consumed=60)
    with pytest.raises(ConfigError, match=r"must be at least 60, as in the lock, got 40.*\n.*--drop consumed"):
        lock_run(path, consumed=40)
    assert lock_run(path, consumed=40, drop=("consumed",)).lock.consumed == 40


def test_a_change_says_nothing_of_what_was_consumed(tmp_path):
    path = start(tmp_path, RUN.replace("mixing_block = 8\n", ""))
    late = amend_run(path, Amendment(position=90, weights=shares(code=1))).locked.lock
    assert (late.consumed, late.amended) == (0, 90)
    early = amend_run(path, Amendment(position=50, weights=shares(web=1))).locked
    assert (early.lock.consumed, early.moved.position >= 50) == (0, True)
    assert [segment.start for segment in early.lock.segments] == [0, 50, 90]
    again = lock_run(path)
    assert (again.moved, again.lock) == (None, early.lock)
    assert lock_run(path, consumed=70).moved is None
    with pytest.raises(ConfigError, match="position must be at least 70, the number of consumed positions, got 60"):
        amend_run(path, Amendment(position=60, weights=shares(code=1)))
