"""A change of a run is there as a whole or not at all, wherever it dies; and a new lock drops nothing unasked."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from tests.cli.runs import RUN, lock_of, write_run
from tests.faults import dies_at, fills_at
from tests.run.changed_runs import shares, start

from tokenloom.errors import ConfigError, OutputBusyError
from tokenloom.run.amend import Amendment, amend_run, deny_documents
from tokenloom.run.lock import lock_path
from tokenloom.run.locking import lock_run
from tokenloom.run.run import Run
from tokenloom.storage.publishing import OutputLock

Change = Callable[[Path], object]

DENIED = RUN + '\n[[denied]]\ndocuments = ["web:5"]\nfrom = 30\n'

CHANGES: dict[str, Change] = {
    "amend": lambda path: amend_run(path, Amendment(position=30, weights=shares(code=1))),
    "deny": lambda path: deny_documents(path, Amendment(position=30, denied_documents=("web:5",))),
    "lock": lambda path: lock_run(path, consumed=20),
}


def files(path: Path) -> tuple[bytes, bytes]:
    return path.read_bytes(), path.with_suffix(".lock").read_bytes()


def sides(folder: Path, change: Change) -> tuple[Path, tuple[bytes, bytes], tuple[bytes, bytes]]:
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
    *(pytest.param(name, 1, marks=pytest.mark.slow, id=f"{name}-every") for name in CHANGES),
]
"""What changes, and from which call to which next one it dies; with 1, also at calls that change no names."""


@pytest.mark.parametrize(("name", "step"), DEATHS)
def test_a_death_at_any_call_leaves_old_or_new(tmp_path, name, step):
    path, before, after = sides(tmp_path, CHANGES[name])
    for number in count(0, step):
        put(path, before)
        died = dies_at(tmp_path, number, lambda: CHANGES[name](path), every=step == 1)
        assert Run.open(path).num_samples == 100
        assert files(path) in (before, after), number
        if not died:
            break
        lock_run(path)
        assert files(path) in (before, after), number
    assert number > 3
    assert files(path) == after


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_a_disk_that_fills_up_at_any_call_leaves_old_or_new(tmp_path, name):
    path, before, after = sides(tmp_path, CHANGES[name])
    for number in count():
        put(path, before)
        failed = fills_at(tmp_path, number, lambda: CHANGES[name](path))
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
        CHANGES[name](path)
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


def torn(folder: Path) -> Path:
    """Returns a run whose `run.toml` was put back to what it was before a denial."""
    path = start(folder)
    text = path.read_text()
    amend_run(path, Amendment(position=30, denied_documents=("web:5", "code:7")))
    path.write_text(text)
    return path


def test_no_denial_is_dropped_unasked(tmp_path):
    path = torn(tmp_path)
    before = path.with_suffix(".lock").read_bytes()
    message = "removes denials of the lock, or moves them later: web:5 from position 30 on, code:7 from position 30 on"
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
    with pytest.raises(ConfigError, match=r"consumed must be at least 60, as in the lock, got 40.*\n.*--drop consumed"):
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
