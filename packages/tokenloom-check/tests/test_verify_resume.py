"""Loaders that are killed and resumed: correct ones pass, and every kind of fault is found and described."""

import json
from collections import Counter

import numpy as np
import pytest
import resume_loaders as loaders
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.run.folders import make_run, write_data
from tests.support import make_dataset, write_corpus
from torch.utils.data import DataLoader

from tokenloom import cli
from tokenloom.errors import ConfigError, ConformanceError
from tokenloom.loading.samplers import MegatronPretrainingSampler
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom_check import ResumeSettings, check_resume, record_batch, record_checkpoint
from tokenloom_check.resume_readings import Sample
from tokenloom_check.verify_resume import compare

SAME = [(1, 1), (2, 2)]
KINDS = ["read again", "resumed", "resumed twice", "state kept", "loaded twice"]
AT_3 = {"kill_at": [3]}
ALONE = {"world_sizes": [(1, 1)]}


def check(make, *, state_of=None, samples="auto", **settings):
    tried = ResumeSettings(**{"seed": 5, "num_batches": 8, "world_sizes": SAME, **settings})
    return check_resume(make, tried, state_of=state_of, samples=samples, in_process=True)


def problem(make, **settings):
    with pytest.raises(ConformanceError) as caught:
        check(make, **settings)
    return " ".join(str(caught.value).split())


def thread_loader(dataset, **settings):
    """Returns a factory of thread loaders that take a state."""

    def make(rank, world_size, state):
        loader = ThreadLoader(dataset, MegatronPretrainingSampler(len(dataset), 0, 2, rank, world_size), **settings)
        if state is not None:
            loader.load_state_dict(state)
        return loader

    return make


def test_thread_loaders_pass(tmp_path, rng):
    lengths = rng.integers(1, 30, size=60)
    corpus = write_corpus(tmp_path / "text", [[*rng.integers(10, 90, size=length), 9] for length in lengths])
    gpt = make_dataset(corpus, num_samples=60, sequence_length=8)

    def with_samples(rank, world_size, consumed):
        return ThreadLoader(gpt, MegatronPretrainingSampler(60, consumed, 2, rank, world_size))

    assert check(thread_loader(gpt, num_threads=2), world_sizes=[(2, 2)], kill_at=[3]).ok
    assert check(with_samples, world_sizes=[(2, 3)], kill_at=[3], order="strict").ok
    write_data(tmp_path)
    dataset = make_run(tmp_path).dataset()
    assert check(thread_loader(dataset, read_ahead=3), world_sizes=[(2, 3)], kill_at=[0, 3], order="strict").ok


def test_torch_loaders_pass_by_the_samples_consumed():
    data = torch.utils.data.TensorDataset(torch.arange(60).reshape(30, 2), torch.arange(30))

    def make(rank, world_size, consumed):
        taken = [range(first + 2 * rank, first + 2 * rank + 2) for first in range(consumed, 30, 2 * world_size)]
        return DataLoader(data, batch_sampler=[[*map(int, row)] for row in taken if row.stop <= 30])

    assert check(make, world_sizes=[(2, 2), (3, 2)], num_batches=5).ok


def test_a_state_may_come_from_a_function():
    def make(rank, world_size, state):
        return iter(loaders.Counting(rank, world_size, state))

    assert check(make, state_of=loaders.position_of, samples=loaders.numbers_of).ok


@pytest.mark.parametrize("make", [loaders.Counting, loaders.by_count])
def test_correct_loaders_pass(make):
    report = check(make, world_sizes=[(1, 2), (2, 3), (2, 1)], seed=None, num_batches=12)
    assert report.ok
    assert {case.kind for case in report.cases} == set(KINDS)
    assert {case.kills for case in report.cases if case.kind == "resumed"} >= {(0,), (11,)}


def test_epochs_are_windows_too():
    report = check(loaders.Short, epochs=2, num_batches=16, world_sizes=[(1, 1)])
    assert [case.kills for case in report.cases if case.kind == "between epochs"] == [(10,)]
    assert (10,) in [case.kills for case in report.cases if case.kind == "resumed"]


READ_AHEAD = (
    "of 32 samples, 8 missing resumed at batch 5 instead of 3: the state counts batches that were not returned yet, "
    "such as prefetched ones first missing: batch 3, rank 0 of the uninterrupted reading"
)
TURNED = ["of 32 samples, 16 in another order", "first reordered: batch 2, rank 0, expected in batch 4"]
RESCALED = ["resumed 2:2 3 0 0 0 0", "resumed 2:3 3 0 12 0 0", "world size 2:3, killed after 3"]
COPY = "the state changed while the loader continued: `state_dict` must return a copy"
FAULTS = [
    (loaders.ForgetsReadAhead, AT_3, ["resumed 1:1 3 0 8 0 0", READ_AHEAD]),
    (loaders.RepeatsABatch, AT_3, ["resumed 1:1 3 4 4 0 0", "batch 2 instead of 3: the state is from an earlier"]),
    (loaders.ignores_its_state, AT_3, ["batch 0 instead of 3: the loader ignores its state or `consumed`"]),
    (loaders.LosesItsSeed, AT_3, ["is not in the uninterrupted reading: the shuffle differs"]),
    (loaders.counts_by_rank, {"world_sizes": [(2, 2), (2, 3)]} | AT_3, RESCALED),
    (loaders.SharesItsState, {}, ["resumed 1:1 7 0 0 0 0", COPY]),
    (loaders.KeepsTheGivenState, {}, ["the first loader changed the state it resumed from: "]),
    (loaders.turns_batches_round, {"kill_at": [1]} | ALONE, TURNED),
    (loaders.RepeatsEpochs, {"epochs": 3, "num_batches": 20} | ALONE, ["in another order"]),
    (loaders.GoesOnBeyondTheEnd, {"num_batches": 20} | AT_3 | ALONE, ["4 repeated first repeated: batch 10, rank 0"]),
    (loaders.ShufflesAnew, {}, ["two uninterrupted readings differ: the order depends on more than"]),
    (loaders.raises, {}, ["resumed 2:2 0 error", "rank 1 raised OSError: no such bucket, in resume_loaders.py:"]),
    (loaders.GivesNothing, {}, ["GivesNothing returned no samples with world size 1"]),
    (loaders.always_raises, {}, ["always_raises failed without a kill, with world size 1: rank 0 raised OSError: no"]),
    (loaders.gives_objects, {}, [": rank 0 failed: `batch['image']` must contain tensors, "]),
]


@pytest.mark.parametrize(("make", "settings", "texts"), FAULTS, ids=lambda value: getattr(value, "__name__", None))
def test_faults_are_found_and_described(make, settings, texts):
    found = problem(make, **settings)
    assert [text for text in texts if text not in found] == [], found


def test_settings_and_factories_are_validated():
    for make, settings, message in (
        (loaders.Counting, {"kill_at": [8]}, "`kill_at` must be below 8, the number of batches, got 8"),
        (loaders.Counting, {"world_sizes": []}, "`world_sizes` must not be empty"),
        (loaders.Counting, {"order": "rank"}, "`order` must be strict, batch, any, got 'rank'"),
        (loaders.Counting, {"kill_at": [100], "num_batches": 101}, "below 100, the number of batches, got 100"),
        (loaders.cannot_go_on, {}, "the factory must take `state` or `consumed` to resume, got `cannot"),
    ):
        with pytest.raises(ConfigError, match=message):
            check(make, **settings)


def test_random_points_follow_from_the_seed(rng):
    seed = int(rng.integers(2**32))
    kills = [[case.kills for case in check(loaders.Counting, seed=seed).cases] for _ in range(2)]
    assert kills[0] == kills[1]
    assert np.all([number < 8 for case in kills[0] for number in case])


def test_factories_get_the_arguments_they_accept():
    given = []

    def make(**arguments):
        given.append(arguments)
        return loaders.Counting(arguments["rank"], arguments["world_size"], arguments["state"])

    assert check(make, kill_at=[3], world_sizes=[(2, 3)]).ok
    first, resumed = given[0], next(one for one in given if one["consumed"])
    assert first == {"rank": 0, "world_size": 2, "state": None, "states": [], "consumed": 0, "num_batches": 0}
    assert resumed["consumed"] == 4 * 2 * resumed["num_batches"]
    assert resumed["state"] in resumed["states"]


def test_processes_are_killed_and_compared():
    report = check_resume(loaders.Counting, ResumeSettings(num_batches=6, world_sizes=[(2, 3)], kill_at=[2], seed=1))
    assert [case.kind for case in report.cases] == KINDS
    assert report.name == f"{loaders.__file__}:Counting"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "message"), [(loaders.dies, "rank 0 died"), (loaders.hangs, "rank 1 returned no batch for 5 seconds")]
)
def test_a_rank_that_dies_or_hangs_is_named(make, message):
    with pytest.raises(ConformanceError, match=message):
        check_resume(make, ResumeSettings(num_batches=3, world_sizes=[(2, 2)], kill_at=[1], seed=1), timeout=5)


def test_a_table_has_a_line_per_case():
    report = check(loaders.Counting, kill_at=[3], num_batches=6, world_sizes=[(2, 3)])
    lines = str(report).splitlines()
    assert lines[1] == "5 cases, 0 failed; 6 batches, order batch, seed 5"
    assert lines[3] == "case              ranks   killed    repeated     missing     unknown   reordered"
    assert "resumed             2:3        3           0           0           0           0" in lines
    assert max(map(len, lines)) <= 80
    assert json.loads(json.dumps(report.as_json()))["ok"] is True


def test_nothing_is_recorded_unless_asked():
    record_batch(object())
    record_checkpoint()


def reading(text):
    """Parses batches of letters: words are batches, and `|` separates ranks."""
    return [[[Sample(letter, letter) for letter in rank] for rank in word.split("|")] for word in text.split()]


DIFFERENCES = [
    ("ab cd ef", "ab cd ef", {}, (0, 0, 0, 0)),
    ("ab cd ef", "ab dc ef", {}, (0, 0, 0, 0)),
    ("ab cd ef", "ab ef", {}, (0, 2, 0, 0)),
    ("ab cd ef", "ab ab cd ef", {}, (2, 2, 0, 0)),  # the window ends after six samples
    ("ab cd ef", "ab cd cd", {}, (2, 2, 0, 0)),
    ("ab cd ef", "ef cd ab", {}, (0, 0, 0, 4)),
    ("ab cd ef", "ab xy ef", {}, (0, 2, 2, 0)),
    ("ab cd ef", "", {}, (0, 6, 0, 0)),
    ("aa aa", "aa aa", {}, (0, 0, 0, 0)),
    ("aa ba", "aa aa", {}, (1, 1, 0, 0)),
    ("a|b c|d", "b|a d|c", {}, (0, 0, 0, 0)),
    ("a|b c|d e|f g|h", "a|b|c|d e|f|g|h", {}, (0, 0, 0, 0)),
    ("ab cd ef", "abcd efgh", {}, (0, 0, 2, 0)),
    ("ab cd ef", "abcd efgh", {"after": reading("gh")}, (0, 0, 0, 0)),
    ("ab cd ef", "ab ef gh", {"after": reading("gh")}, (0, 2, 0, 0)),
    ("ab cd ef", "abcd efgg", {"after": reading("g")}, (0, 0, 1, 0)),
    ("a|b c|d", "a|b c|d", {"order": "strict"}, (0, 0, 0, 0)),
    ("a|b c|d", "b|a c|d", {"order": "strict"}, (0, 0, 0, 2)),
    ("a|b c|d", "a|b|c|d", {"order": "strict"}, (0, 0, 0, 0)),
    ("a|b c|d", "b|a c|d", {"order": "batch"}, (0, 0, 0, 0)),
    ("a|b c|d", "c|b a|d", {"order": "batch"}, (0, 0, 0, 2)),
    ("a|b c|d", "c|d a|b", {"order": "any"}, (0, 0, 0, 0)),
]


@pytest.mark.parametrize(("expected", "found", "settings", "counts"), DIFFERENCES)
def test_differences_are_counted(expected, found, settings, counts):
    result = compare(reading(expected), reading(found), **settings)
    assert (result.repeated, result.missing, result.unknown, result.reordered) == counts


@pytest.mark.parametrize(
    ("found", "kind", "batch", "rank", "expected_batch", "letter"),
    [
        ("a|b c|d c|d", "repeated", 2, 0, 1, "c"),
        ("a|b e|f", "missing", 1, 0, 1, "c"),
        ("a|b c|d e|x", "missing", 2, 1, 2, "f"),
        ("a|b c|d e|f|x", "unknown", 2, 2, None, "x"),
        ("a|c b|d e|f", "reordered", 0, 1, 1, "c"),
    ],
)
def test_the_first_difference_is_located(found, kind, batch, rank, expected_batch, letter):
    first = compare(reading("a|b c|d e|f"), reading(found)).first
    place = (first.kind, first.batch, first.rank, first.expected_batch, first.sample)
    assert place == (kind, batch, rank, expected_batch, letter)
    assert first.fingerprint == letter


@given(
    st.lists(st.text("abcdef", min_size=1, max_size=3), min_size=1, max_size=5),
    st.lists(st.text("abcdefg", min_size=1, max_size=3), max_size=5),
)
def test_counts_match_multisets(expected, found):
    result = compare(reading(" ".join(expected)), reading(" ".join(found)))
    window = Counter("".join(expected))
    seen = Counter()
    for word in found:
        if seen.total() < window.total():
            seen += Counter(word)
    assert result.missing == (window - seen).total()
    assert result.repeated + result.unknown == (seen - window).total()
    assert result.any == bool(result.repeated or result.missing or result.unknown or result.reordered)
    assert result.num_samples == window.total()


def run(capsys, *words):
    status = cli.main(["verify-resume", *map(str, words)])
    return status, *capsys.readouterr()


FIVE = ("--batches", 5, "--kill-at", 2)


def test_a_correct_loader_exits_with_0(capsys):
    status, out, err = run(capsys, f"{loaders.__file__}:Counting", *FIVE, "--world-sizes", "1:2")
    assert status == 0
    assert "5 cases, 0 failed; 5 batches, order batch, seed " in out
    assert err == f"seed {out.splitlines()[1].split()[-1]}\n"
    assert all(len(line) <= 80 for line in out.splitlines()[1:])


def test_a_wrong_loader_exits_with_1(capsys):
    options = ("--world-sizes", "1", "--seed", 3, "--json")
    status, out, err = run(capsys, f"{loaders.__file__}:ForgetsReadAhead", *FIVE, *options)
    assert (status, err) == (1, "")
    found = json.loads(out)
    assert (found["ok"], found["seed"]) == (False, 3)
    assert {case["kind"]: case["missing"] for case in found["cases"]}["resumed"] == 8


def test_failures_are_reported(capsys):
    counting = f"{loaders.__file__}:Counting"
    for words, text in (
        ([f"{loaders.__file__}:absent"], "module 'resume_loaders' has no attribute 'absent'"),
        (["absent:make"], "error: cannot import 'absent:make': No module named"),
        ([f"{loaders.__file__}:always_raises", "--json"], "rank 0 raised OSError: no such bucket"),
        ([counting, "--samples", "rows"], "error: expected a function as FILE.py:FUNCTION or MODULE:FUNCTION"),
        ([counting, "--kill-at", 24], "`--kill-at` must be below 24, the number of batches, got 24"),
    ):
        status, _, err = run(capsys, *words)
        assert status == 1
        assert text in err


def test_wrong_usage_exits_with_2(capsys):
    for words, message in (
        (["absent"], "no file absent: LOADER is FILE.py:FUNCTION, MODULE:FUNCTION or a program"),
        (["a.b:make", "--arguments=x"], "--arguments is for programs only"),
        (["a.b:make", "--world-sizes", "1,x"], "`--world-sizes`: 'x' is not an integer"),
    ):
        with pytest.raises(SystemExit) as stopped:
            run(capsys, *words)
        assert stopped.value.code == 2
        assert message in capsys.readouterr().err
