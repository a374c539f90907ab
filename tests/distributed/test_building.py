"""Real processes that build together, compare values, settings and data, fail together or are killed."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from tests.support import write_corpus

from tokenloom.distributed.building import Build, do_together
from tokenloom.distributed.ranks import current_ranks, name_ranks
from tokenloom.errors import ConfigError

pytest.importorskip("torch")

slow = pytest.mark.slow


def no_leftovers(folder):
    return sorted(path.name for path in folder.iterdir()) == ["result"]


@pytest.mark.parametrize(("backend", "builders"), [("gloo", "auto"), ("gloo", "rank0"), ("stub", "node")])
def test_one_rank_builds_and_the_others_load(run, backend, builders):
    outcomes = run("build", backend=backend, builders=builders)
    assert outcomes.results == ["built by 0"] * 4
    assert (outcomes.noted("built"), outcomes.noted("loaded")) == ([0], [1, 2, 3])
    assert no_leftovers(outcomes.shared / "cache")


@pytest.mark.parametrize(
    ("wanted", "results", "built"),
    [
        ((0, 2), ["built by 0", None, "built by 0", None], [0]),
        ((1, 3), [None, "built by 1", None, "built by 1"], [1]),
        ((), [None] * 4, []),
    ],
)
def test_ranks_without_the_dataset_only_wait_for_the_others(run, wanted, results, built):
    outcomes = run("build", wanted=wanted)
    assert (outcomes.results, outcomes.noted("built")) == (results, built)


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
        ("aabb", "xxyy", "auto", [0, 2]),  # disks of their own
        ("aabb", "xxxx", "auto", [0]),  # one disk for all
        ("abab", "xyxy", "auto", [0, 1]),
        pytest.param("abcd", "xyzz", "auto", [0, 1, 2], marks=slow),
        ("aabb", "xxxx", "node", [0, 2]),
        pytest.param("aabb", "xxyy", "rank0", [0, 2, 3], marks=slow),  # more builders than one, as folders differ
        ("aabb", "XXXX", "auto", [0, 1, 2, 3]),  # folders that cannot be written
    ],
)
def test_each_disk_has_one_builder(run, hosts, folders, builders, built):
    outcomes = run("build_on_hosts", hosts=hosts, folders=folders, builders=builders)
    if builders == "node" and folders == "xxxx":  # rank 2 may find what rank 0 builds at the same time
        assert outcomes.noted("built") in ([0, 2], [0], [2])
    elif builders == "rank0" and folders == "xxyy":  # ranks 2 and 3 race; one of them may find what the other built
        assert set(outcomes.noted("built")) in ({0, 2}, {0, 3}, {0, 2, 3})
    elif folders == "xyzz":  # ranks 2 and 3 lead their hosts and race as well
        assert set(outcomes.noted("built")) in ({0, 1, 2}, {0, 1, 3}, {0, 1, 2, 3})
    else:
        assert outcomes.noted("built") == built
    if not folders.isupper():
        assert None not in outcomes.results
        assert all(no_leftovers(folder) for folder in outcomes.shared.glob("cache-*"))


def test_a_disk_whose_first_rank_is_not_built_on_has_another_builder(run):
    outcomes = run("build_on_hosts", hosts="aabb", folders="xxyy", wanted=(1, 3))
    assert (outcomes.results, outcomes.noted("built")) == ([None, "built by 1", None, "built by 3"], [1, 3])


def test_a_failing_build_fails_on_all_ranks_with_its_cause(run):
    outcomes = run("fail", who=(0,))
    for kind, message in outcomes.errors:
        assert kind == "BuildError"
        assert message.startswith("rank 0 on `")
        assert message.endswith("` failed in the build: IndexCacheError: broken data")
    assert {outcome["hint"] for outcome in outcomes.by_rank.values()} == {"mend the data"}
    assert [outcomes.by_rank[rank]["causes"] for rank in range(4)] == [["IndexCacheError: broken data"], [], [], []]


@pytest.mark.parametrize("who", [2, 3])
def test_a_failing_load_fails_on_all_ranks_with_its_cause(run, who):
    outcomes = run("fail", who=(who,))
    assert [kind for kind, _ in outcomes.errors] == ["BuildError"] * 4
    assert all(message.startswith(f"rank {who} on `") for _, message in outcomes.errors)
    assert all("failed in loading the build: IndexCacheError: broken data" in text for _, text in outcomes.errors)
    assert outcomes.by_rank[who]["causes"] == ["IndexCacheError: broken data"]


def test_several_failures_are_counted_and_the_first_is_told(run):
    outcomes = run("fail", who=(1, 2, 3))
    assert all("(and ranks 2-3 as well): IndexCacheError: broken data" in message for _, message in outcomes.errors)


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


@pytest.mark.parametrize(
    ("victim", "backend"),
    [
        (0, "gloo"),
        (3, "stub"),
        *(
            pytest.param(victim, backend, marks=slow)
            for victim, backend in [(2, "gloo"), (3, "gloo"), (0, "gloo by TCP"), (2, "gloo by TCP"), (0, "stub")]
        ),
    ],
)
def test_a_rank_killed_during_the_build_fails_all_others(run_fresh, victim, backend):
    outcomes = run_fresh("die", victim=victim, when="building", backend=backend)
    if backend == "gloo by TCP" and victim == 0:  # the store dies with it, so who comes late cannot be told the name
        for outcome in outcomes.by_rank.values():
            unsure = "the host of the store of `torch.distributed`, often rank 0,"
            outcome["message"] = outcome["message"].replace(unsure, "rank 0")
    check_survivors(outcomes, victim, "during ")


@pytest.mark.parametrize("victim", [2, pytest.param(3, marks=slow)])
def test_a_rank_killed_while_loading_fails_all_others(run_fresh, victim):
    outcomes = run_fresh("die", victim=victim, when="loading")
    check_survivors(outcomes, victim, "during loading the build")


@pytest.mark.parametrize("victim", [2, pytest.param(3, marks=slow)])
def test_those_who_wait_notice_a_death_while_another_still_builds(run_fresh, victim):
    check_survivors(run_fresh("die_during_a_long_build", victim=victim), victim, "during ")


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


def test_builders_are_checked():
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


def test_failing_to_compute_a_value_fails_all_ranks(run):
    outcomes = run("fail_to_agree")
    assert all("failed in comparing the colour: OSError: disk on fire" in message for _, message in outcomes.errors)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3"),
        ([0, 2, 3, 4, 9], "ranks 0, 2-4, 9"),
        (range(0, 100, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, …"),
    ],
)
def test_ranks_are_named_shortly(ranks, text):
    assert name_ranks(ranks) == text


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


def test_a_rank_with_other_data_under_the_same_name_is_told(run, alike, tmp_path):
    (tmp_path / "other").mkdir()
    other = write_corpus(tmp_path / "other" / "0", [[2] * 9] * 59 + [[3] * 8])
    outcomes = run("build_differently", prefixes=alike[:1], changes=[{}, {"prefixes": [other]}, {}, {}])
    assert {kind for kind, _ in outcomes.errors} == {"DivergenceError"}
    assert "ranks differ in data 0 (`0`): 60 sequences and 61 boundaries of" in outcomes.errors[0][1]


def test_a_rank_with_the_same_data_elsewhere_passes(run, alike, tmp_path):
    (tmp_path / "other").mkdir()
    other = write_corpus(tmp_path / "other" / "0", [[1] * 9] * 60)
    changes = [{}, {"prefixes": [other], "num_dataset_builder_threads": 2, "mmap_bin_files": False}]
    outcomes = run("build_differently", prefixes=alike[:1], changes=[*changes, {}, {}])
    assert outcomes.results == [outcomes.results[0]] * 4
