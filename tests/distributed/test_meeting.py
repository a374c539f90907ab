"""Real processes, some of which are frozen, late or slow."""

from __future__ import annotations

import re

import pytest
from tests.support import write_corpus

import tokenloom
from tokenloom.distributed.membership import Membership
from tokenloom.distributed.ranks import Ranks, rank_silence_seconds
from tokenloom.errors import ConfigError

dist = pytest.importorskip("torch.distributed")

slow = pytest.mark.slow

SILENCE_SECONDS = 3.0
SILENT = r"has been silent for \d+\.\d s during "
MISSING = r"has not reached .* within \d+\.\d s"


def check_frozen(outcomes, frozen, told, *, most_sockets=0):
    """Checks that all ranks name the frozen ones, and that no rank leaves threads or sockets."""
    assert [kind for kind, _ in outcomes.errors] == ["BuildError"] * 4
    for rank, (_, message) in enumerate(outcomes.errors):
        for other in frozen if rank not in frozen else ():
            assert re.search(rf"rank {other}( on `[^`]+` \(pid \d+\))? {told}", message), message
        if rank not in frozen:
            assert "TOKENLOOM_RANK_SILENCE_SECONDS" in outcomes.by_rank[rank]["hint"]
        threads, num_sockets = outcomes.by_rank[rank]["left"]
        assert threads == []
        assert num_sockets <= most_sockets


def member_of(store):
    return Membership(
        Ranks(rank=0, world_size=2, host="a"),
        lambda: store,
        process={"host": "a", "pid": 1},
        is_gone=lambda _: False,
        nonce="0",
        silence_seconds=60.0,
        now=0.0,
    )


@pytest.mark.parametrize("kind", ["file", "memory", "TCP", "TCP with a prefix"])
def test_no_call_of_the_store_waits_for_a_key(kind, tmp_path):
    stores = {
        "file": lambda: dist.FileStore(str(tmp_path / "store"), 1),
        "memory": dist.HashStore,
        "TCP": lambda: dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False),
    }
    made = stores[kind.split()[0]]()
    store = dist.PrefixStore("prefix", made) if "prefix" in kind else made
    member = member_of(store)
    assert member._read("one") is None
    assert member._read("one") is None  # and reading made none
    assert member._read_all([]) == []
    store.set("one", "1")
    assert member._read_all(["one", "two"]) == []
    assert store.compare_set("two", "", '{"a": 2}') == b'{"a": 2}'
    assert store.compare_set("two", "", "other") == b'{"a": 2}'
    assert member._read_all(["one", "two"]) == ["1", '{"a": 2}']
    store.append("lines", "a\n")
    store.append("lines", "b\n")
    assert member._read("lines") == "a\nb\n"
    store.delete_key("lines")
    store.delete_key("lines")
    assert member._read("lines") is None


def test_a_store_without_its_host_is_an_error():
    made = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    member = member_of(made.clone())
    assert member._read("one") is None
    del made
    with pytest.raises(RuntimeError):
        member._read("one")


@pytest.mark.parametrize(
    ("frozen", "when"),
    [
        ((1, 2), "waiting"),
        ((3,), "working"),
        *(pytest.param((rank,), when, marks=slow) for rank, when in [(0, "working"), (2, "working"), (3, "waiting")]),
    ],
)
def test_a_frozen_rank_is_named_by_all_others_and_learns_of_it_when_it_wakes(run_fresh, frozen, when):
    # A rank that waits looks into the store all the time: frozen, it could keep the lock of a store in a file.
    backend = "gloo by TCP" if when == "waiting" else "gloo"
    outcomes = run_fresh("freeze", backend=backend, frozen=frozen, who=frozen, when=when, silence=SILENCE_SECONDS)
    check_frozen(outcomes, frozen, SILENT, most_sockets=len(frozen) if when == "waiting" else 0)  # of the store
    if frozen == (3,):
        assert "on `" in outcomes.errors[3][1]


@slow
@pytest.mark.parametrize("victim", [0, 3])
def test_a_rank_that_was_frozen_before_it_came_is_named(run_fresh, victim):
    how = {"frozen": (victim,), "who": (victim,), "when": "before", "silence": SILENCE_SECONDS}
    check_frozen(run_fresh("freeze", backend="stub", **how), (victim,), MISSING)


@slow
@pytest.mark.parametrize(("when", "step"), [("before", "choosing the building rank (auto)"), ("working", "the build")])
def test_a_frozen_host_of_the_store_is_named(run_fresh, when, step):
    outcomes = run_fresh("freeze", backend="gloo by TCP", frozen=(0,), who=(0,), when=when, silence=SILENCE_SECONDS)
    expected = "the host of the store of `torch.distributed`, often rank 0, has not answered for 3.0 s during " + step
    assert outcomes.errors[0][0] == "BuildError"
    assert outcomes.errors[1:] == [("BuildError", expected)] * 3


@slow
def test_a_frozen_host_of_the_store_does_not_hold_up_a_collective(run_fresh):
    how = {"backend": "gloo by TCP", "frozen": (0,), "victim": 0, "silence": SILENCE_SECONDS}
    outcomes = run_fresh("freeze_in_a_collective", **how)
    assert [kind for kind, _ in outcomes.errors] == ["BuildError"] * 4
    assert all("has not answered for 3.0 s during reducing" in message for _, message in outcomes.errors[1:])


@slow
def test_a_rank_frozen_while_it_reads_what_is_compared_is_named(run_fresh):
    outcomes = run_fresh("freeze_while_comparing", frozen=(1,), victim=1, silence=SILENCE_SECONDS)
    check_frozen(outcomes, (1,), SILENT + "comparing the first samples; when last heard, it was at comparing")


@slow
@pytest.mark.parametrize("victim", [1, 3])
def test_a_rank_frozen_in_a_collective_is_named(run_fresh, victim):
    outcomes = run_fresh("freeze_in_a_collective", frozen=(victim,), victim=victim, silence=SILENCE_SECONDS)
    check_frozen(outcomes, (victim,), SILENT + "reducing")
    if victim == 1:
        assert outcomes.errors[0][1].endswith("during reducing; when last heard, it was at reducing")


@slow
@pytest.mark.parametrize("victim", [1, 3])
def test_a_rank_that_never_calls_is_named(run_fresh, victim):
    outcomes = run_fresh("never_come", who=victim, silence=2 * SILENCE_SECONDS)  # others may be late for half of it
    assert [kind for kind, _ in outcomes.errors] == ["BuildError"] * 4
    for rank, (_, message) in enumerate(outcomes.errors):
        if rank != victim:
            assert re.match(rf"rank {victim} {MISSING}", message), message


def test_a_rank_frozen_while_it_writes_an_index_leaves_nothing_that_counts_as_one(run_fresh, tmp_path):
    (tmp_path / "data").mkdir()
    prefix = write_corpus(tmp_path / "data" / "0", [[row + 1] * 13 for row in range(60)])
    outcomes = run_fresh("freeze_while_writing", frozen=(0,), prefixes=[prefix], silence=SILENCE_SECONDS)
    check_frozen(outcomes, (0,), SILENT + "the build; when last heard, it was at the build")
    left = {path.name for path in outcomes.shared.joinpath("cache").iterdir()}
    complete = {name.removesuffix("-description.txt") for name in left if name.endswith("-description.txt")}
    assert all(f"{base}-shuffle_index.npy" in left for base in complete)
    assert not [name for name in left if "tmp" in name or "pending" in name]


@slow
@pytest.mark.parametrize(
    ("case", "options"),
    [
        ("be_slow", {"how": "waiting"}),
        ("be_slow", {"how": "in Python"}),
        ("be_slow", {"how": "in one call", "seconds": 4.0, "silence": 6.0}),  # two seconds for a busy machine
        ("come_late_to_a_second_meeting", {}),
    ],
)
def test_a_rank_that_works_for_long_is_waited_for(run_fresh, case, options):
    times = {"seconds": SILENCE_SECONDS * 2, "silence": SILENCE_SECONDS}
    assert run_fresh(case, **times | options).results == ["built by 0"] * 4


@pytest.mark.parametrize(("backend", "has_sockets"), [("gloo", False), ("gloo by TCP", True)])
def test_one_thread_stays_while_the_group_lives(run_fresh, backend, has_sockets):
    outcomes = run_fresh("succeed_and_look", backend=backend)
    assert outcomes.results == [(has_sockets, ["tokenloom-ranks"], "[]")] * 4


@pytest.fixture
def default_silence(monkeypatch):
    monkeypatch.delenv("TOKENLOOM_RANK_SILENCE_SECONDS", raising=False)
    yield
    tokenloom.set_rank_silence_seconds(None)


def test_the_call_counts_before_the_environment_and_that_before_the_default(default_silence, monkeypatch):
    assert rank_silence_seconds() == 60
    monkeypatch.setenv("TOKENLOOM_RANK_SILENCE_SECONDS", "90.5")
    assert rank_silence_seconds() == 90.5
    tokenloom.set_rank_silence_seconds(30)
    assert rank_silence_seconds() == 30


@pytest.mark.parametrize("text", ["soon", "", "1e999", "nan", "0.5", "-3"])
def test_what_is_no_time_or_too_short_is_refused(default_silence, monkeypatch, text):
    monkeypatch.setenv("TOKENLOOM_RANK_SILENCE_SECONDS", text)
    with pytest.raises(ConfigError, match=r"^`TOKENLOOM_RANK_SILENCE_SECONDS`: must be"):
        rank_silence_seconds()


@pytest.mark.parametrize("seconds", [0, 0.99, -1, float("inf"), float("nan")])
def test_a_limit_that_a_busy_rank_would_miss_is_refused(seconds):
    with pytest.raises(ConfigError, match=r"^`seconds`: must be"):
        tokenloom.set_rank_silence_seconds(seconds)
