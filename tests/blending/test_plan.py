"""Plans of a build: their counts and problems equal those of the build."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support import make_config, write_corpus

from tokenloom.blending.builder import BlendedMegatronDatasetBuilder
from tokenloom.blending.plan import plan_build
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError, DatasetFormatError, OversampledError, ShortDatasetWarning
from tokenloom.indexed.layout import HEADER_BYTES


def build(config, sizes):
    return BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config).build()


def corpus(folder, name, *lengths):
    return write_corpus(folder / name, [[1] * length for length in lengths])


@pytest.fixture
def two(tmp_path):
    """Two pairs of ten documents, with 100 and 300 tokens."""
    return [corpus(tmp_path, "small", *[10] * 10), corpus(tmp_path, "large", *[30] * 10)]


def test_a_weighted_blend(two):
    plan = plan_build(make_config(None, blend=(two, [1.0, 1.0]), split="50,50,0"), [30, 10, None])
    train, valid, test = plan.splits
    assert test is None
    assert (train.split, train.kind) == (Split.train, "weighted")
    assert (train.size, train.num_samples, train.num_tokens) == (30, 30, 200)
    small, large = train.datasets
    assert (small.name, small.num_sequences, small.num_tokens, small.weight, small.share) == (two[0], 5, 50, 1.0, 0.5)
    assert (small.num_samples_owed, small.num_epochs_owed) == (15, 1.2)
    assert (small.num_samples_built, small.num_epochs_built) == (24, 2)
    assert (large.num_samples_owed, large.num_epochs_owed) == (15, 0.4)
    assert (large.num_samples_built, large.num_epochs_built) == (37, 1)
    assert valid.num_samples == 10
    assert plan.problems == ()
    assert plan.surplus is None


def test_a_blend_without_weights_takes_one_epoch_of_each(two):
    config = make_config(None, blend=(two, None), split="1")
    train = plan_build(config, [None, None, None]).splits[0]
    assert (train.kind, train.num_samples) == ("proportional", 24 + 74)
    assert [(each.num_samples_owed, each.num_samples_built) for each in train.datasets] == [(24, 24), (74, 74)]
    train = plan_build(config, [40, None, None]).splits[0]
    assert (train.num_samples, train.size) == (40, 40)
    assert [each.num_samples_owed for each in train.datasets] == [10, 30]
    assert plan_build(config, [4000, None, None]).splits[0].num_samples == 98


def test_a_dataset_that_runs_short_is_found_before_the_build(tmp_path):
    prefixes = [corpus(tmp_path, name, 5) for name in "abc"]
    blend = (prefixes, [7.0, 2.0, 1.0])
    config, sizes = make_config(None, blend=blend, split="1", mid_level_dataset_surplus=0.0), [1, None, None]
    plan = plan_build(config, sizes)
    (problem,) = plan.problems
    assert (problem.name, problem.owed, problem.available) == (prefixes[0], 2, 1)
    with pytest.raises(OversampledError) as caught:
        build(config, sizes)
    assert str(caught.value) == (
        f"the blend (train) takes 2 samples from `{prefixes[0]}`, which has 1\n"
        "hint: set `extend_short_datasets=True` to build more epochs, or `mid_level_dataset_surplus="
        f"{plan.surplus!r}` or more, or lower the weight"
    )

    config.mid_level_dataset_surplus = plan.surplus
    assert plan_build(config, sizes).problems == ()
    assert len(build(config, sizes)[0]) == plan.splits[0].num_samples
    config.mid_level_dataset_surplus = 0.0
    config.extend_short_datasets = True
    extended = plan_build(config, sizes)
    assert extended.problems == ()
    built = build(config, sizes)
    assert_is_built(extended, built)
    assert [built[0].locate(k) for k in range(len(built[0]))] == [(0, 0), (1, 0), (0, 1)]


@pytest.mark.filterwarnings("ignore::tokenloom.ShortDatasetWarning")
def test_datasets_without_samples_are_problems(tmp_path, two):
    empty = corpus(tmp_path, "empty", 2)
    config = make_config(None, blend=([*two, empty], None), split="1")
    for size in (None, 10):
        plan = plan_build(config, [size, None, None])
        (problem,) = plan.problems
        assert (problem.name, problem.owed, problem.available, problem.surplus) == (empty, 0, 0, None)
        assert problem.remedy == "it has too few tokens for one sample: lower `sequence_length`, or remove the dataset"
        assert plan.surplus is None
        with pytest.raises(ConfigError, match="must be finite and above 0"):
            build(config, [size, None, None])
    nothing = corpus(tmp_path, "nothing", 0)
    config = make_config(None, blend=([*two, nothing], [1.0, 1.0, 1.0]), split="1")
    (problem,) = plan_build(config, [30, None, None]).problems
    assert (problem.name, problem.owed, problem.available) == (nothing, 10, 0)
    with pytest.raises(ConfigError, match="the documents of the split have no tokens"):
        build(config, [30, None, None])


def test_of_a_dataset_that_is_owed_nothing_and_holds_nothing_no_epoch_is_built(tmp_path, two):
    blend = [*two, corpus(tmp_path, "nothing", 0), corpus(tmp_path, "more", 30)], [25.0, 6.0, 3.0, 26.0]
    plan = plan_build(make_config(None, blend=blend, split="1", extend_short_datasets=True), [1, None, None])
    found = [(each.num_samples_owed, each.num_epochs_built) for each in plan.splits[0].datasets]
    assert found == [(1, 1), (1, 1), (0, 0), (2, 1)]


def test_lengths_that_do_not_add_up_are_told(two):
    with open(f"{two[0]}.idx", "r+b") as stream:
        stream.seek(HEADER_BYTES + 4 * 3)
        stream.write(np.int32(11).tobytes())
    config = make_config(None, blend=(two, None), split="1", window_policy="best_fit")
    with pytest.raises(DatasetFormatError, match=r"small\.idx`: expected pointer .* for sequence 4\n"):
        plan_build(config, [None, None, None])


def test_an_epoch_without_samples_is_a_problem_though_the_build_only_warns(two):
    config = make_config(None, blend=(two[:1], None), split="9,1", sequence_length=50)
    plan = plan_build(config, [None, None, None])
    (problem,) = plan.problems
    assert (problem.split, problem.name, problem.owed, problem.available) == (Split.valid, two[0], 0, 0)
    assert problem.remedy == (
        "it has too few tokens for one sample: lower `sequence_length`, or change the weight of the split"
    )
    with pytest.warns(ShortDatasetWarning, match="has 10 tokens, too few for one sample of 51"):
        train, valid, _ = build(config, [None, None, None])
    assert (len(train), len(valid)) == (1, 0)
    assert plan_build(config, [None, 0, None]).problems == ()  # no samples are requested
    per_split = make_config(
        None, blend_per_split=[(two, None), (two, None), None], multiple_validation_sets=True, sequence_length=200
    )
    assert [(each.split, each.name) for each in plan_build(per_split, [None, None, None]).problems] == [
        (Split.train, two[0]),
        (Split.valid, two[0]),
    ]


def assert_is_built(plan, datasets):
    for planned, built in zip(plan.splits, datasets, strict=True):
        assert (planned is None) == (built is None)
        if planned is None:
            continue
        parts = {"single": lambda one: [one], "list": list}.get(planned.kind, lambda blend: blend.datasets)(built)
        if planned.kind == "list":
            assert planned.num_samples == sum(map(len, built))
        else:
            assert planned.num_samples == len(built)
        assert planned.num_tokens == sum(part.epoch_plan.tokens_per_epoch for part in parts)
        for each, part in zip(planned.datasets, parts, strict=True):
            assert each.name == part.dataset_path
            assert each.num_sequences == len(part.indices)
            assert each.num_tokens == part.epoch_plan.tokens_per_epoch
            assert each.num_samples_built == len(part)
            assert each.num_epochs_built == part.epoch_plan.num_epochs
        owed = [each.num_samples_owed for each in planned.datasets]
        if planned.kind in ("weighted", "proportional"):
            assert owed == np.bincount(built.dataset_index, minlength=len(parts)).tolist()
        assert [each.share for each in planned.datasets] == [count / max(sum(owed), 1) for count in owed]


def draw_blend(rng, prefixes):
    chosen = rng.choice(prefixes, size=int(rng.integers(1, 8))).tolist()
    if rng.random() < 0.4:
        return chosen, None
    return chosen, (10.0 ** rng.uniform(-4, 1, size=len(chosen))).tolist()


@pytest.mark.parametrize("turn", [*range(10), *(pytest.param(turn, marks=pytest.mark.slow) for turn in range(10, 40))])
@pytest.mark.filterwarnings("ignore::tokenloom.ShortDatasetWarning", "ignore::tokenloom.DuplicateDataWarning")
def test_random_builds_do_what_their_plan_said(tmp_path, seed, turn):
    rng = np.random.default_rng([seed, turn])
    prefixes = [
        corpus(tmp_path, f"p{number}", *rng.integers(0, 40, size=int(rng.integers(1, 40))).tolist())
        for number in range(6)
    ]
    settings = {
        "sequence_length": int(rng.integers(1, 12)),
        "path_to_cache": f"{tmp_path}/cache",
        "mid_level_dataset_surplus": float(rng.choice([0.0, 0.005, 0.5])),
        "extend_short_datasets": bool(rng.integers(2)),
        "add_extra_token_to_sequence": bool(rng.integers(2)),
        "drop_last_partial_validation_sequence": bool(rng.integers(2)),
        "num_dataset_builder_threads": int(rng.integers(1, 4)),
    }
    sizes = [None if rng.random() < 0.2 else int(rng.integers(0, 300)) for _ in Split]
    if rng.random() < 0.5:
        blends = [None if rng.random() < 0.2 else draw_blend(rng, prefixes) for _ in Split]
        settings |= {"blend_per_split": blends, "multiple_validation_sets": bool(rng.integers(2))}
    else:
        settings |= {"blend": draw_blend(rng, prefixes), "split": str(rng.choice(["1", "70,20,10", "9,1"]))}
    config = make_config(None, **settings)
    if config.mock:
        return
    if any(blend is not None and blend[1] is not None for blend in (config.blend, *(config.blend_per_split or []))):
        sizes = [50 if size is None else size for size in sizes]  # weights need a size
    plan = plan_build(config, sizes)
    if any(fails_the_build(plan, problem) for problem in plan.problems):
        with pytest.raises((ConfigError, OversampledError)):
            build(config, sizes)
    else:
        assert_is_built(plan, build(config, sizes))


def fails_the_build(plan, problem):
    """Returns whether a problem is an error; for an empty epoch the build only warns."""
    split = plan.splits[problem.split.value]
    return split.kind not in ("single", "list") or split.size is not None
