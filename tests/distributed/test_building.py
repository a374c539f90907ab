"""Real processes that build, compare, check and fail together; some are frozen, late, slow or killed."""

import re
import subprocess
import sys

import pytest
from tests.loading.reading import dataset_of
from tests.support import write_corpus

import tokenloom
from tokenloom.distributed.building import Build, do_together
from tokenloom.distributed.membership import Membership
from tokenloom.distributed.ranks import Ranks, current_ranks, name_ranks, rank_silence_seconds
from tokenloom.errors import ConfigError
from tokenloom.loading.sample_digests import RangeDigest, digest_of_positions

slow = pytest.mark.slow


def no_leftovers(folder):
    return sorted(path.name for path in folder.iterdir()) == ["result"]


@pytest.mark.parametrize(("backend", "builders"), [("gloo", "auto"), ("gloo", "rank0"), ("stub", "node")])
def test_one_rank_builds_and_the_others_load(run, backend, builders):
    outcomes = run("build", backend=backend, builders=builders)
    assert outcomes.results == ["built by 0"] * 4
    assert (outcomes.noted("built"), outcomes.noted("loaded")) == ([0], [1, 2, 3])
    assert no_leftovers(outcomes.shared / "cache")


@pytest.mark.parametrize("wanted", [(0, 2), (1, 3), ()])
def test_ranks_without_the_dataset_only_wait_for_the_others(run, wanted):
    outcomes = run("build", wanted=wanted)
    assert outcomes.results == [f"built by {wanted[0]}" if rank in wanted else None for rank in range(4)]
    assert outcomes.noted("built") == list(wanted[:1])


@pytest.mark.parametrize(
    ("case", "results"),
    [
        ("build_in_memory", [0, 1, 2, 3]),  # without a folder, all ranks build at once
        ("default_device_is_elsewhere", ["built by 0"] * 4),
        ("fail_then_succeed", ["built by 0"] * 4),
    ],
)
def test_all_ranks_succeed(run, case, results):
    assert run(case).results == results


@pytest.mark.parametrize(
    ("case", "options", "results"),
    [
        ("build", {"world_size": 1}, ["built by 0"]),
        pytest.param("build_longer_than_the_timeout", {}, [("built by 0", "timed out")] * 4, marks=slow),
        ("be_in_different_numbers_of_groups", {"silence": 20}, ["built by 0"] * 4),
        ("meet_again_beside_the_same_store", {"silence": 20}, ["met"] * 4),
    ],
)
def test_all_ranks_of_other_groups_succeed(run_fresh, case, options, results):
    assert run_fresh(case, **options).results == results


@pytest.mark.parametrize(
    ("hosts", "folders", "builders", "built"),
    [
        ("aabb", "xxyy", "auto", ([0, 2],)),  # disks of their own
        ("aabb", "xxxx", "auto", ([0],)),  # one disk for all
        ("abab", "xyxy", "auto", ([0, 1],)),
        # Ranks 2 and 3 lead their hosts and race; one of them may find what the other built.
        pytest.param("abcd", "xyzz", "auto", ([0, 1, 2], [0, 1, 3], [0, 1, 2, 3]), marks=slow),
        ("aabb", "xxxx", "node", ([0, 2], [0], [2])),  # rank 2 may find what rank 0 builds at the same time
        # More builders than one, as folders differ; ranks 2 and 3 race as well.
        pytest.param("aabb", "xxyy", "rank0", ([0, 2], [0, 3], [0, 2, 3]), marks=slow),
        ("aabb", "XXXX", "auto", ([0, 1, 2, 3],)),  # folders that cannot be written
    ],
)
def test_each_disk_has_one_builder(run, hosts, folders, builders, built):
    outcomes = run("build_on_hosts", hosts=hosts, folders=folders, builders=builders)
    assert outcomes.noted("built") in built
    if not folders.isupper():
        assert None not in outcomes.results
        assert all(no_leftovers(folder) for folder in outcomes.shared.glob("cache-*"))


def test_a_disk_whose_first_rank_is_not_built_on_has_another_builder(run):
    outcomes = run("build_on_hosts", hosts="aabb", folders="xxyy", wanted=(1, 3))
    assert (outcomes.results, outcomes.noted("built")) == ([None, "built by 1", None, "built by 3"], [1, 3])


def test_failing_builds_fail_on_all_ranks_with_the_first_cause(run):
    outcomes = run("fail", who=(0,))
    for kind, message in outcomes.errors:
        assert kind == "BuildError"
        assert message.startswith("rank 0 on `")
        assert message.endswith("` failed in the build: IndexCacheError: broken data")
    assert {outcome["hint"] for outcome in outcomes.by_rank.values()} == {"mend the data"}
    assert [outcomes.by_rank[rank]["causes"] for rank in range(4)] == [["IndexCacheError: broken data"], [], [], []]
    outcomes = run("fail", who=(1, 2, 3))
    assert all("(and ranks 2-3 as well): IndexCacheError: broken data" in message for _, message in outcomes.errors)


@pytest.mark.parametrize("who", [2, 3])
def test_a_failing_load_fails_on_all_ranks_with_its_cause(run, who):
    outcomes = run("fail", who=(who,))
    assert [kind for kind, _ in outcomes.errors] == ["BuildError"] * 4
    assert all(message.startswith(f"rank {who} on `") for _, message in outcomes.errors)
    assert all("failed in loading the build: IndexCacheError: broken data" in text for _, text in outcomes.errors)
    assert outcomes.by_rank[who]["causes"] == ["IndexCacheError: broken data"]


def test_ranks_at_different_steps_are_named(run):
    steps = "ranks 0, 2-3 at 'choosing the building rank (auto)', rank 1 at 'comparing the colour'"
    expected = ("DivergenceError", f"ranks are at different steps: {steps}")
    assert run("be_at_different_steps").errors == [expected] * 4


def check_survivors(outcomes, victim, step):
    assert set(outcomes.by_rank) == {0, 1, 2, 3} - {victim}
    assert [kind for kind, _ in outcomes.errors] == ["BuildError"] * 3
    for _, message in outcomes.errors:
        assert message.startswith(f"rank {victim}")
        assert "died or ended" in message
        assert step in message


MORE = [(2, "gloo"), (3, "gloo"), (0, "gloo by TCP"), (2, "gloo by TCP"), (0, "stub")]


@pytest.mark.parametrize(
    ("victim", "backend"), [(0, "gloo"), (3, "stub"), *(pytest.param(*each, marks=slow) for each in MORE)]
)
def test_a_rank_killed_during_the_build_fails_all_others(run_fresh, victim, backend):
    outcomes = run_fresh("die", victim=victim, when="building", backend=backend)
    if backend == "gloo by TCP" and victim == 0:  # the store dies with it, so who comes late cannot be told the name
        for outcome in outcomes.by_rank.values():
            unsure = "the host of the store of `torch.distributed`, often rank 0,"
            outcome["message"] = outcome["message"].replace(unsure, "rank 0")
    check_survivors(outcomes, victim, "during ")


@pytest.mark.parametrize("victim", [2, pytest.param(3, marks=slow)])
@pytest.mark.parametrize(
    ("case", "options", "step"),
    [("die", {"when": "loading"}, "during loading the build"), ("die_during_a_long_build", {}, "during ")],
)
def test_a_rank_killed_while_loading_or_in_a_long_build_fails_all_others(run_fresh, victim, case, options, step):
    check_survivors(run_fresh(case, victim=victim, **options), victim, step)


def test_a_rank_killed_before_it_came_fails_all_others_as_one_that_never_comes(run_fresh):
    outcomes = run_fresh("die_long_before", silence=3)
    assert [kind for kind, _ in outcomes.errors] == ["BuildError"] * 3
    for _, message in outcomes.errors:
        assert re.match(r"rank 1 has not reached choosing the building rank \(auto\) within \d\.\d s", message), message


@slow
@pytest.mark.parametrize("victim", [0, 1, 2, 3])
def test_a_rank_killed_at_any_moment_fails_all_others(run_fresh, rng, victim):
    outcomes = run_fresh("die_at_any_moment", victim=victim, delay_seconds=float(rng.uniform(0, 0.05)))
    check_survivors(outcomes, victim, "during ")


@pytest.mark.parametrize(("victim", "backend"), [(0, "gloo by TCP"), pytest.param(3, "gloo", marks=slow)])
def test_a_rank_that_is_interrupted_fails_all_others_with_its_cause(run_fresh, victim, backend):
    outcomes = run_fresh("be_interrupted", victim=victim, backend=backend)
    assert outcomes.by_rank.pop(victim) == {"result": "interrupted"}
    for _, message in outcomes.errors:
        assert re.fullmatch(rf"rank {victim} on `\S+` \(pid \d+\) ended during .*: KeyboardInterrupt", message), message


@pytest.mark.parametrize("victim", [1, 3])
def test_a_rank_that_ends_early_fails_all_others(run_fresh, victim):
    outcomes = run_fresh("end_early", victim=victim)
    assert sorted(outcomes.by_rank) == [rank for rank in range(4) if rank != victim]
    for _, message in outcomes.errors:
        assert re.fullmatch(rf"rank {victim} on `\S+` \(pid \d+\) ended before this step: its process ended", message)


def test_ranks_with_other_batches_are_named(run):
    assert run("check_batches", datasets="aa-a").results == [None] * 4
    for kind, message in run("check_batches", datasets="aaba").errors:
        assert kind == "DivergenceError"
        assert message.startswith("ranks differ in the first samples: '100 samples, ")
        assert message.endswith("on rank 2")


def test_without_torch_distributed_work_is_called_and_torch_stays_away(tmp_path):
    code = """if True:
        import sys
        from tokenloom.distributed.building import Build, do_together
        do_together('painting', lambda: 'blue')
        build = Build(work=lambda: 'built', folder='nowhere', builders='node')
        print(build.together(), 'torch' in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("built False\n", "")
    assert list(tmp_path.iterdir()) == []


def test_alone_errors_come_as_they_are():
    def work():
        raise KeyError("missing")

    assert current_ranks() is None
    with pytest.raises(KeyError, match="missing"):
        Build(work=work, folder=None).together()
    with pytest.raises(KeyError, match="missing"):
        do_together("painting", work)
    assert Build(work=work, folder=None, is_built_on_rank=lambda: False).together() is None
    with pytest.raises(ConfigError, match="`builders`: must be 'auto', 'rank0' or 'node', got 'all'"):
        Build(work=lambda: 1, folder=None, builders="all").together()


@pytest.fixture
def prefixes(tmp_path):
    (tmp_path / "data").mkdir()
    return [
        write_corpus(tmp_path / "data" / str(number), [[number * 9 + 1] * (row % 13) for row in range(60)])
        for number in range(5)
    ]


@pytest.fixture
def alike(tmp_path):
    (tmp_path / "data").mkdir()
    return [write_corpus(tmp_path / "data" / str(number), [[number + 1] * 9] * 60) for number in range(2)]


@pytest.mark.parametrize("wanted", [(0, 1, 2, 3), (1, 3)])
def test_one_rank_builds_the_indices_of_a_blend_and_all_have_the_same_samples(run, prefixes, wanted):
    outcomes = run("build_a_blend", prefixes=prefixes, wanted=wanted)
    assert len({result for result in outcomes.results if result is not None}) == 1
    assert [rank for rank, result in enumerate(outcomes.results) if result is not None] == list(wanted)
    (built,) = outcomes.shared.glob("indices-built-*")
    assert built.name == f"indices-built-{wanted[0]}"
    assert sorted(built.read_text().split()) == sorted(prefixes * 2)  # train and valid of each, once


@pytest.mark.parametrize(("victim", "when"), [(2, "made"), (0, "built")])
def test_a_rank_that_raises_in_the_build_of_a_blend_fails_all_with_its_cause(run, prefixes, victim, when):
    outcomes = run("build_a_blend", prefixes=prefixes, victim=victim, breaks=f"raise when {when}")
    step = "the build" if when == "built" else "checking what is already built"
    for kind, message in outcomes.errors:
        assert kind == "BuildError"
        assert message.startswith(f"rank {victim} ")
        assert message.endswith(f" failed in {step}: IndexCacheError: broken data")


@pytest.mark.parametrize(("victim", "when"), [(0, "built"), pytest.param(2, "made", marks=slow)])
def test_a_rank_killed_in_the_build_of_a_blend_fails_all_others(run_fresh, prefixes, victim, when):
    outcomes = run_fresh("build_a_blend", prefixes=prefixes, victim=victim, breaks=f"die when {when}")
    assert sorted(outcomes.by_rank) == [rank for rank in range(4) if rank != victim]
    assert {kind for kind, _ in outcomes.errors} == {"BuildError"}


def test_equal_values_pass_and_unequal_ones_name_their_ranks(run):
    for values in (["blue"] * 4, ["blue", None, "blue", None]):  # None is not compared
        assert run("agree_on", values=values).results == [None] * 4
    expected = "ranks differ in the colour: 'blue' on ranks 0, 2-3, 'red' on rank 1"
    assert run("agree_on", values=["blue", "red", "blue", "blue"]).errors == [("DivergenceError", expected)] * 4
    outcomes = run("agree_on", values=["a" * 20_000 + "b", "a" * 20_001, None, None])
    assert [kind for kind, _ in outcomes.errors] == ["DivergenceError"] * 4
    outcomes = run("fail_to_agree")
    assert all("failed in comparing the colour: OSError: disk on fire" in message for _, message in outcomes.errors)


def test_ranks_are_named_shortly():
    assert name_ranks([3]) == "rank 3"
    assert name_ranks([0, 2, 3, 4, 9]) == "ranks 0, 2-4, 9"
    assert name_ranks(range(0, 100, 2)) == "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, …"


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
def test_a_rank_with_another_setting_is_told_with_both_values(run, alike, change, told):
    outcomes = run("build_differently", prefixes=alike, changes=[{}, change, {}, {}])
    for kind, message in outcomes.errors:
        assert (kind, message[:16], told in message) == ("DivergenceError", "ranks differ in ", True)
    assert not (outcomes.shared / "cache").exists()
    assert not list(outcomes.shared.glob("indices-built-*"))


def test_a_rank_with_other_data_under_the_same_name_is_told_and_one_with_the_same_elsewhere_passes(
    run, alike, tmp_path
):
    (tmp_path / "other").mkdir()
    other = write_corpus(tmp_path / "other" / "0", [[2] * 9] * 59 + [[3] * 8])
    outcomes = run("build_differently", prefixes=alike[:1], changes=[{}, {"prefixes": [other]}, {}, {}])
    assert {kind for kind, _ in outcomes.errors} == {"DivergenceError"}
    assert "ranks differ in data 0 (`0`): 60 sequences and 61 boundaries of" in outcomes.errors[0][1]
    other = write_corpus(tmp_path / "other" / "0", [[1] * 9] * 60)
    changes = [{}, {"prefixes": [other], "num_dataset_builder_threads": 2, "mmap_bin_files": False}]
    outcomes = run("build_differently", prefixes=alike[:1], changes=[*changes, {}, {}])
    assert outcomes.results == [outcomes.results[0]] * 4


dist = pytest.importorskip("torch.distributed")


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
    ranks, process = Ranks(rank=0, world_size=2, host="a"), {"host": "a", "pid": 1}
    options = {"is_gone": lambda _: False, "nonce": "0", "silence_seconds": 60.0, "now": 0.0}
    return Membership(ranks, lambda: store, process=process, **options)


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


def test_what_is_no_time_or_too_short_for_a_busy_rank_is_refused(default_silence, monkeypatch):
    for text in ("soon", "", "1e999", "nan", "0.5", "-3"):
        monkeypatch.setenv("TOKENLOOM_RANK_SILENCE_SECONDS", text)
        with pytest.raises(ConfigError, match=r"^`TOKENLOOM_RANK_SILENCE_SECONDS`: must be"):
            rank_silence_seconds()
    for seconds in (0, 0.99, -1, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match=r"^`seconds`: must be"):
            tokenloom.set_rank_silence_seconds(seconds)


LAST = "since the last check: expected digest"


@pytest.fixture
def dataset(tmp_path):
    return dataset_of(tmp_path)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_any_number_of_data_parallel_ranks_has_read_the_same(run, dataset, tmp_path, size):
    outcomes = run("read_and_check", folder=str(tmp_path), size=size, lying={}, resumed=size == 2)
    middle, end = outcomes.results[0]
    assert outcomes.results == [[middle, end]] * 4
    assert RangeDigest.parse(middle).digest == digest_of_positions(dataset, range(48))
    assert RangeDigest.parse(end).digest == digest_of_positions(dataset, range(96))
    assert RangeDigest.parse(end).start == 0


def told(outcomes):
    """Returns the message of the error that is the same on all ranks."""
    [(kind, message)] = set(outcomes.errors)
    assert kind == "DivergenceError"
    return message


@pytest.mark.parametrize(
    ("options", "ranks", "positions", "batch"),
    [
        ({"size": 4, "lying": {2: 26}}, "data-parallel rank 2: rank 2", "[24, 25, 26, 27]", 1),
        ({"size": 2, "lying": {1: 80}, "reread": "never"}, "data-parallel rank 0: rank 1", "[80, 81, 82, 83]", 4),
        ({"size": 2, "lying": {2: 4, 3: 4}}, "data-parallel rank 1: ranks 2-3", "[4, 5, 6, 7]", 0),
    ],
)
def test_ranks_that_lie_are_named(run, dataset, tmp_path, options, ranks, positions, batch):
    message = told(run("read_and_check", folder=str(tmp_path), **options))
    expected = f"{ranks} read tokens that differ from the data at positions {positions}, batch {batch} {LAST}"
    assert message.startswith(expected)


def test_ranks_without_a_loader_take_part_and_a_missing_one_is_named(run, dataset, tmp_path):
    outcomes = run("read_and_check", folder=str(tmp_path), size=2, lying={}, readers=(0, 3))
    assert RangeDigest.parse(outcomes.results[1][1]).digest == digest_of_positions(dataset, range(96))
    message = told(run("read_and_check", folder=str(tmp_path), size=2, lying={}, readers=(0, 1)))
    assert message == "no loader for data-parallel rank 1 of 2"


def test_ranks_at_different_positions_are_told(run, dataset, tmp_path):
    message = told(run("read_and_check", folder=str(tmp_path), size=4, lying={}, late=1))
    assert message.startswith("ranks read different ranges since the last check: positions 0-48 of run ")
    assert " with 4 data-parallel ranks on ranks 0, 2-3, positions 0-32 of run " in message
