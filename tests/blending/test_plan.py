"""Plans of a build: what it requests from each dataset, and counts and problems equal to those of the build."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rendering.cards import tables_of, text_of
from tests.support import make_config, write_corpus

from tokenloom.blending.build_plan import plan_build
from tokenloom.blending.dataset_builder import BlendedMegatronDatasetBuilder
from tokenloom.blending.quota import blend_counts, normalize, quotas, sufficient_surplus, target_sizes, with_surplus
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError, DatasetFormatError, OversampledError, ShortDatasetWarning
from tokenloom.indexed.layout import HEADER_BYTES

PREFIXES = ["a", "b", "c"]


def test_weights_become_shares_and_sizes():
    assert normalize([1, 2, 1]) == [0.25, 0.5, 0.25]
    assert target_sizes([0.25, 0.5, 0.25], 10) == [3, 5, 3]
    assert [with_surplus(target, 0.005) for target in target_sizes([0.25, 0.5, 0.25], 1000)] == [252, 503, 252]
    assert blend_counts([1, 2, 1], 0).tolist() == [0, 0, 0]
    assert blend_counts([1, 2, 1], 0).dtype == blend_counts([1, 2, 1], 8).dtype == np.int64
    assert blend_counts([1, 2, 1], 8).tolist() == [2, 4, 2]


@given(
    st.lists(st.floats(1e-9, 1.0), min_size=1, max_size=50), st.integers(1, 3000), st.sampled_from([0.0, 0.005, 1.5])
)
def test_what_is_built_covers_what_is_meant(weights, size, surplus):
    shares = normalize(weights)
    targets = target_sizes(shares, size)
    assert size <= sum(targets) <= size + len(weights)
    assert all(with_surplus(target, surplus) >= target for target in targets)
    for target, more in [*((each, each + 1) for each in targets), *((each, 9 * each) for each in targets)]:
        assert with_surplus(target, sufficient_surplus(target, more)) == more
    assert blend_counts(shares, sum(targets)).sum() == sum(targets)


def kinds(sizes=(10, 10, 10), **settings):
    return [quota and (quota.kind, quota.num_samples) for quota in quotas(make_config(None, **settings), sizes)]


def test_every_case_of_the_table():
    one, three = ["a"], PREFIXES
    single = [("single", (size,)) for size in (5, None, 0)]
    assert kinds((5, None, 0), blend=(one, None), split="1,1,1") == single
    assert kinds(blend=(one, [2.0]), split="1")[0] == ("weighted", (11,))
    assert kinds(blend=(three, [2.0, 1.0, 1.0]), split="1,1,0") == [("weighted", (6, 4, 4))] * 2 + [None]
    assert kinds(blend=(three, None), split="1")[0] == ("proportional", (None, None, None))
    per_split = [("single", (10,)), None, ("proportional", (None, None, None))]
    assert kinds(blend_per_split=[(one, [2.0]), None, (three, None)]) == per_split
    lists = kinds(blend_per_split=[(three, None)] * 3, multiple_validation_sets=True)
    assert lists[1] == ("list", (10, 10, 10))
    assert lists[0][0] == lists[2][0] == "proportional"
    several = {"blend_per_split": [(three, None)] * 3, "multiple_validation_sets": True, "full_validation": True}
    full = kinds((10, None, 10), **several)
    assert full[1] == ("list", (None, None, None))
    assert kinds() == [("single", (10,))] * 3  # mock data


@pytest.mark.parametrize("weights", [[1e-320, 1e5, 1.0], [1e308, 1e308, 1e308]])
def test_weights_that_vanish_are_refused(weights):
    with pytest.raises(ConfigError, match=r"^weight .* of `a` \(train\): too small for a sum of weights of ") as caught:
        quotas(make_config(None, blend=(PREFIXES, weights), split="1"), [10, None, None])
    assert caught.value.hint == "remove the dataset, or use weights of similar magnitude"
    with pytest.raises(ConfigError, match=r"^the size for valid: must be 0 or more, got -1$"):
        quotas(make_config("a"), [1, -1, 1])


# --- plans ----------------------------------------------------------------------------------------------------------
def build(config, sizes):
    return BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config).build()


def write_lengths(folder, name, *lengths):
    return write_corpus(folder / name, [[1] * length for length in lengths])


@pytest.fixture
def two(tmp_path):
    """Two pairs of ten documents, with 100 and 300 tokens."""
    return [write_lengths(tmp_path, "small", *[10] * 10), write_lengths(tmp_path, "large", *[30] * 10)]


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
    prefixes = [write_lengths(tmp_path, name, 5) for name in "abc"]
    blend = (prefixes, [7.0, 2.0, 1.0])
    config, sizes = make_config(None, blend=blend, split="1", mid_level_dataset_surplus=0.0), [1, None, None]
    plan = plan_build(config, sizes)
    (problem,) = plan.problems
    assert (problem.name, problem.owed, problem.available) == (prefixes[0], 2, 1)
    with pytest.raises(OversampledError) as caught:
        build(config, sizes)
    assert str(caught.value) == (
        f"the blend (train) takes 2 samples from `{prefixes[0]}`, which has 1\n"
        "hint: set `extend_short_datasets=True` to build more epochs, or set at least `mid_level_dataset_surplus="
        f"{plan.surplus!r}`, or lower the weight of the dataset"
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
    empty = write_lengths(tmp_path, "empty", 2)
    config = make_config(None, blend=([*two, empty], None), split="1")
    for size in (None, 10):
        plan = plan_build(config, [size, None, None])
        (problem,) = plan.problems
        assert (problem.name, problem.owed, problem.available, problem.surplus) == (empty, 0, 0, None)
        assert problem.remedy == "it has too few tokens for one sample: lower `sequence_length`, or remove the dataset"
        assert plan.surplus is None
        with pytest.raises(ConfigError, match="must be finite and above 0"):
            build(config, [size, None, None])
    nothing = write_lengths(tmp_path, "nothing", 0)
    config = make_config(None, blend=([*two, nothing], [1.0, 1.0, 1.0]), split="1")
    (problem,) = plan_build(config, [30, None, None]).problems
    assert (problem.name, problem.owed, problem.available) == (nothing, 10, 0)
    with pytest.raises(ConfigError, match="the documents of the split have no tokens"):
        build(config, [30, None, None])


def test_of_a_dataset_that_is_owed_nothing_and_holds_nothing_no_epoch_is_built(tmp_path, two):
    blend = [*two, write_lengths(tmp_path, "nothing", 0), write_lengths(tmp_path, "more", 30)], [25.0, 6.0, 3.0, 26.0]
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
    several = {"blend_per_split": [(two, None), (two, None), None], "multiple_validation_sets": True}
    problems = plan_build(make_config(None, **several, sequence_length=200), [None, None, None]).problems
    assert [(each.split, each.name) for each in problems] == [(Split.train, two[0]), (Split.valid, two[0])]


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
            assert (each.name, each.num_sequences) == (part.dataset_path, len(part.indices))
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
        write_lengths(tmp_path, f"p{number}", *rng.integers(0, 40, size=int(rng.integers(1, 40))).tolist())
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


# --- notebook cards -------------------------------------------------------------------------------------------------
def corpora(folder, count):
    """Writes pairs of 1, 2, 3, ... documents of ten tokens; returns their prefixes."""
    return [write_corpus(folder / f"s{number}", [[1] * 10] * (number + 1)) for number in range(count)]


def test_a_blend_shows_its_shares(tmp_path):
    config = make_config(None, blend=(corpora(tmp_path, 2), [3.0, 1.0]), split="1,0,0")
    blend = BlendedMegatronDatasetBuilder(GPTDataset, [8, 0, 0], lambda: True, config).build()[0]
    facts, members = tables_of(blend._repr_html_())
    assert facts == [["split", "train"], ["samples", "8"], ["class", "GPTDataset"], ["sequence length", "4"]]
    assert [share for _, share in members] == ["share", "75.000%", "25.000%"]


def test_a_plan_shows_each_split_and_what_is_wrong(tmp_path):
    config = make_config(None, blend=(corpora(tmp_path, 2), [3.0, 1.0]), split="50,50,0", mid_level_dataset_surplus=0.0)
    plan = plan_build(config, [40, 10, None])
    facts, train, valid = tables_of(plan._repr_html_())
    assert facts[0] == ["sequence length", "4"]
    assert facts[3:5] == [["train samples", "40"], ["valid samples", "11"]]
    assert train[0][2:6] == ["weight", "share", "samples", "epochs"]
    assert [row[2:5] for row in train[1:]] == [["3", "75.00%", "30"], ["1", "25.00%", "10"]]
    assert len(valid) == 3
    assert plan.problems
    assert text_of(plan._repr_html_()).count(" samples needed, ") == len(plan.problems)
